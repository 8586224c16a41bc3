//! Clients that do what sockets allow and libraries do not: nothing they do strands a slot or a place in the queue.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use serde::Deserialize;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::kernel_state::Maps;
use shaper_tests::lane_file::LaneFile;
use shaper_tests::script::script;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(60);

/// A service time that makes two clients at once visible.
const SERVICE: Duration = Duration::from_millis(300);

/// A `connect_hold` beyond every wait here: connects are held, not requests.
const LONG: Duration = Duration::from_secs(60);

/// What a program saw, by the names it gave.
type Seen = BTreeMap<String, serde_json::Value>;

/// The kernel's own words about the lane are all zero.
fn ensure_nothing_counts(controller: &Controller) -> Result<()> {
    let lane = Maps::of(controller.pid())?.first_lane()?;
    ensure!(lane.is_quiet(), "{lane:?}");
    Ok(())
}

/// Two programs at once in a lane with one slot: what one does, the other does while its request, or its connect, is
/// held. Afterwards the lane is empty, in the controller's books and in the kernel's.
fn two_at_once(connect_hold: Duration, program: &str) -> Result<(Vec<Seen>, Gateway)> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::after(SERVICE))?;
    let lane = LaneFile::over(gateway.addresses())
        .connect_hold(connect_hold)
        .line("idle_release = \"500ms\"\nabort_hold = \"0s\"");
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;
    let clients = (0..2)
        .map(|number| {
            script::<Seen>(&format!("client {number}"), &gateway, program).spawn_in(&stage.default)
        })
        .collect::<Result<Vec<_>>>()?;
    let mut seen = Vec::new();
    for client in clients {
        seen.push(client.finish(PATIENCE)?.0);
    }
    controller.wait_for("gateway", 0, 0)?;
    ensure_nothing_counts(&controller)?;
    Ok((seen, gateway))
}

/// Both are answered, one after the other.
fn both_are_answered(connect_hold: Duration, program: &str) -> Result<()> {
    let (seen, gateway) = two_at_once(connect_hold, program)?;
    for seen in seen {
        assert_eq!(seen["statuses"], serde_json::json!([200]), "{seen:?}");
    }
    assert_eq!(gateway.tally().peak_in_service, 1);
    Ok(())
}

/// D4: a client that closes its sending side behind its request waits, goes, and strands nothing.
#[test]
fn a_half_closed_client_reads_to_the_end() -> Result<()> {
    // The stub takes it for one that left, as many servers do, and closes.
    const PROGRAM: &str = r#"
connection = plain()
connection.sendall(request())
connection.shutdown(socket.SHUT_WR)
try:
    report(status=read_response(connection)[0])
except EOFError:
    report(status=0)
"#;
    let (_, gateway) = two_at_once(Duration::ZERO, PROGRAM)?;
    let tally = gateway.tally();
    assert_eq!((tally.requests.len(), tally.peak_in_service), (2, 1));
    Ok(())
}

/// D4: a client that resets its connection while it waits leaves nothing behind.
#[test]
fn a_client_that_resets_while_it_waits_leaves_nothing_behind() -> Result<()> {
    const PROGRAM: &str = r#"
connection = plain()
connection.sendall(request())
time.sleep(0.1)
connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
connection.close()
report(done=True)
"#;
    for connect_hold in [Duration::ZERO, Duration::from_millis(50)] {
        two_at_once(connect_hold, PROGRAM)?;
    }
    Ok(())
}

/// A10: a request that comes byte by byte arrives whole all the same.
#[test]
fn a_request_sent_byte_by_byte_arrives_whole() -> Result<()> {
    const PROGRAM: &str = r#"
connection = plain()
for byte in request():
    connection.sendall(bytes([byte]))
report(statuses=[read_response(connection)[0]])
"#;
    // What is short passes a closed gate, up to a bound, so that the gateway sees the first bytes of both at once.
    let (seen, _) = two_at_once(Duration::ZERO, PROGRAM)?;
    for seen in seen {
        assert_eq!(seen["statuses"], serde_json::json!([200]));
    }
    Ok(())
}

/// Requests sent one behind the other without a wait count as one, and strand nothing.
#[test]
fn pipelined_requests_strand_nothing() -> Result<()> {
    const PROGRAM: &str = r#"
connection = plain()
connection.sendall(request() * 3)
report(statuses=[read_response(connection)[0] for _ in range(3)])
"#;
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses()).connect_hold(Duration::ZERO),
        )?
        .start()?;
    for _ in 0..2 {
        // The stub takes what comes behind a request for the client's end, so the answers do not count here.
        let client = script::<Seen>("pipelines", &gateway, PROGRAM).spawn_in(&stage.default)?;
        let _ = client.finish(PATIENCE);
    }
    controller.wait_for("gateway", 0, 0)?;
    ensure_nothing_counts(&controller)
}

/// A8: a client that connects and sends nothing gives its slot back.
#[test]
fn a_client_that_never_sends_holds_no_slot() -> Result<()> {
    const PROGRAM: &str = r#"
idle = plain()
connection = plain()
status = call(connection)
connection.close()
idle.close()
report(statuses=[status])
"#;
    both_are_answered(LONG, PROGRAM)
}

/// E4: a socket that connects again after a refusal, or after an attempt that failed before it began, is governed as a
/// fresh one, and what it had comes back meanwhile.
#[test]
fn a_socket_that_connects_again_is_governed_again() -> Result<()> {
    const PROGRAM: &str = r#"
def bound(port):
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, port))
    return bound

first = bound(0)
second = bound(first.getsockname()[1])
first.connect((HOST, PORT))
assert call(first) == 200
try:
    # The same addresses and ports: refused before TCP begins.
    second.connect((HOST, PORT))
    raise SystemExit("two connections of one name")
except OSError:
    pass
time.sleep(0.2)
first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
first.close()
second.connect((HOST, PORT))
report(statuses=[call(second)])
"#;
    both_are_answered(LONG, PROGRAM)
}

/// A20: a socket that two processes share belongs to the last of them.
#[test]
fn a_socket_shared_by_fork_keeps_its_slot_until_the_last_one_closes() -> Result<()> {
    const PROGRAM: &str = r#"
connection = plain()
connection.sendall(request())
copy = connection.dup()
connection.close()
if os.fork() == 0:
    time.sleep(0.1)
    os._exit(0)
status = read_response(copy)[0]
copy.close()
os.wait()
report(statuses=[status])
"#;
    both_are_answered(Duration::ZERO, PROGRAM)
}

/// A20: a socket handed to another process is governed on.
#[test]
fn a_socket_handed_to_another_process_is_governed_on() -> Result<()> {
    const PROGRAM: &str = r#"
here, there = socket.socketpair()
if os.fork() == 0:
    _, descriptors, _, _ = socket.recv_fds(there, 1, 1)
    connection = socket.socket(fileno=descriptors[0])
    connection.settimeout(60)
    here.close()
    there.sendall(b"%03d" % call(connection))
    os._exit(0)
connection = plain()
socket.send_fds(here, [b"."], [connection.fileno()])
connection.close()
there.close()
status = int(read_exactly(here, 3))
os.wait()
report(statuses=[status])
"#;
    both_are_answered(Duration::ZERO, PROGRAM)
}

/// E1: threads that share a connection share its slot.
#[test]
fn threads_that_share_a_connection_share_its_slot() -> Result<()> {
    const PROGRAM: &str = r#"
connection = plain()
whole = request(body=100_000)
middle = len(whole) // 2
first = threading.Thread(target=lambda: connection.sendall(whole[:middle]))
first.start()
first.join()
second = threading.Thread(target=lambda: connection.sendall(whole[middle:]))
second.start()
status = read_response(connection)[0]
second.join()
connection.close()
report(statuses=[status])
"#;
    both_are_answered(Duration::ZERO, PROGRAM)
}

#[derive(Debug, Deserialize)]
struct Started {
    #[serde(rename = "connections")]
    _connections: usize,
}

/// A20, E4: clients with hundreds of connections in every state, most of them killed at a random moment: nothing is
/// left of them, neither in the controller's books nor in the kernel's.
#[test]
fn a_storm_of_killed_clients_leaves_nothing_behind() -> Result<()> {
    const PROGRAM: &str = r#"
import random
connections = int(ARGUMENTS[0])
random.seed(ARGUMENTS[1])

def client():
    try:
        connection = plain()
        for _ in range(3):
            call(connection, body=random.choice([300, 1024, 200_000]))
            time.sleep(random.random() / 5)
        if random.random() < 0.3:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    except (EOFError, OSError):
        pass

threads = [threading.Thread(target=client, daemon=True) for _ in range(connections)]
for thread in threads: thread.start()
for thread in threads: thread.join()
report(connections=connections)
"#;
    const LIMIT: usize = 8;
    const PROCESSES: usize = 10;
    const CONNECTIONS: usize = 50;
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::after(Duration::from_millis(20)))?;
    let lane = LaneFile::over(gateway.addresses())
        .limit(LIMIT)
        .queue(1000)
        .connect_hold(Duration::from_millis(200))
        .line("idle_release = \"500ms\"\nabort_hold = \"300ms\"");
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;
    let mut clients = (0..PROCESSES)
        .map(|number| {
            script::<Started>("storm", &gateway, PROGRAM)
                .argument(CONNECTIONS.to_string())
                .argument(number.to_string())
                .spawn_in(&stage.default)
        })
        .collect::<Result<Vec<_>>>()?;
    // At moments that the machine's own noise makes random enough: in the rush, in the queue, at the end.
    for pause in [300, 200, 400, 150, 600, 250, 350, 500] {
        std::thread::sleep(Duration::from_millis(pause));
        let victim = clients.remove(0);
        kill(victim.pid(), Signal::SIGKILL).context("cannot kill a client")?;
        victim.kill9()?;
    }
    for client in clients {
        client.finish(PATIENCE)?;
    }
    controller.wait_for("gateway", 0, 0)?;
    controller.wait_until("gateway", |lane| lane.idle_connections == 0)?;
    ensure_nothing_counts(&controller)?;
    let tally = gateway.tally();
    println!(
        "{} connections, {} requests, {} served, {} broken off, peak {}",
        tally.accepted,
        tally.requests.len(),
        tally.served(),
        tally.aborted(),
        tally.peak_in_service
    );
    assert_eq!(tally.peak_in_service, LIMIT);
    Ok(())
}
