//! Everything at once: three classes, accounts, caps, a short queue, timeouts and clients that are killed at random.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use shaper_tests::client::{PythonReport, Running, finish_all, python};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Request};
use shaper_tests::kernel_state::Maps;
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(60);

/// Forks workers that call one after another, and kills one at random now and then; another goes on in its place. Each
/// worker counts in shared memory, so that what a killed one did is known. Every second worker gives a connect up by
/// itself.
const PACK: &str = r#"
import errno, json, mmap, os, random, signal, socket, sys, time

host, port, label, calls = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
WORKERS, KILLS, GIVE_UP = 4, 6, 0.2
KINDS = ["attempts", "answered", "refused", "expired", "gave_up", "broken"]
shared = memoryview(mmap.mmap(-1, 8 * WORKERS * len(KINDS))).cast("Q")
body = b"." * 1024
request = b"POST / HTTP/1.1\r\nHost: gateway\r\nX-Label: %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (
    label.encode(), len(body)) + body

def call(timeout, count):
    connection = socket.socket()
    connection.settimeout(timeout)
    try:
        count("attempts")
        connection.connect((host, port))
        connection.settimeout(10)
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
        count("answered" if answer.startswith(b"HTTP/1.1 200 ") else "broken")
    except TimeoutError:
        count("gave_up")
    except OSError as error:
        kind = {errno.ECONNREFUSED: "refused", errno.ECONNABORTED: "expired"}.get(error.errno, "broken")
        if kind == "broken":
            print(repr(error), file=sys.stderr, flush=True)
        count(kind)
        time.sleep(0.03)
    finally:
        connection.close()

def work(worker):
    base = worker * len(KINDS)
    def count(kind):
        shared[base + KINDS.index(kind)] += 1
    while shared[base] < calls // WORKERS:
        call(GIVE_UP if worker % 2 else None, count)

def start(worker):
    child = os.fork()
    if child == 0:
        work(worker)
        os._exit(0)
    return child

running = {start(worker): worker for worker in range(WORKERS)}
killed = 0
while running:
    time.sleep(random.uniform(0.05, 0.15))
    for child in list(running):
        if os.waitpid(child, os.WNOHANG)[0]:
            del running[child]
    if running and killed < KILLS:
        victim = random.choice(list(running))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        killed += 1
        worker = running.pop(victim)
        running[start(worker)] = worker

report = {kind: sum(shared[at::len(KINDS)]) for at, kind in enumerate(KINDS)}
print(json.dumps(report | {"killed": killed}))
"#;

#[derive(Clone, Copy, Debug, Deserialize)]
struct Pack {
    attempts: u64,
    answered: u64,
    refused: u64,
    expired: u64,
    gave_up: u64,
    broken: u64,
    killed: u64,
}

fn is(label: &str) -> impl Fn(&Request) -> bool {
    move |request| {
        request
            .label
            .as_deref()
            .is_some_and(|l| l.starts_with(label))
    }
}

/// A4, B1, B2, B4, D5, E4: under any mixture of classes, accounts, refusals, timeouts and deaths, no limit is ever
/// exceeded at the gateway; and when everybody has gone, every connect has had exactly one outcome and nothing is left.
#[test]
fn no_limit_is_exceeded_and_nothing_is_left_after_a_mixed_crowd_with_deaths() -> Result<()> {
    const CALLS: u64 = 100;
    const SERVICE: Duration = Duration::from_millis(50);
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::after(SERVICE))?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(5)
                .queue(11)
                .line("interactive_reserve = 1")
                // Longer than the gateway takes to see that a client has gone.
                .line("abort_hold = \"200ms\"")
                // A place in line that is taken over would make one outcome of two connects.
                .line("ticket_grace = \"0s\"")
                .line("aging = \"300ms\"")
                .line("[class.bulk]\nmax_inflight = 3\nqueue_timeout = \"300ms\"")
                .line("[account]\nmax_inflight = 3\noverrides = { acme = 2 }"),
        )?
        .start()?;

    let packs = ["interactive", "default", "bulk/acme", "bulk/other"]
        .into_iter()
        .map(|label| {
            python::<Pack>(label, PACK)
                .argument(gateway.address().ip().to_string())
                .argument(gateway.address().port().to_string())
                .argument(label)
                .argument(CALLS.to_string())
                .spawn_in(&stage.cgroups().group(label)?)
        })
        .collect::<Result<Vec<Running<PythonReport<Pack>>>>>()?;
    let packs: Vec<Pack> = finish_all(packs, PATIENCE)?
        .into_iter()
        .map(|report| report.0)
        .collect();
    println!("{packs:#?}");
    controller.wait_for("gateway", 0, 0)?;

    let tally = gateway.tally();
    let peaks = BTreeMap::from([
        ("all", tally.peak_in_service),
        (
            "others",
            tally.peak_of(|r| is("default")(r) || is("bulk")(r)),
        ),
        ("bulk", tally.peak_of(is("bulk"))),
        ("acme", tally.peak_of(is("bulk/acme"))),
        ("other", tally.peak_of(is("bulk/other"))),
    ]);
    println!("peaks at the gateway: {peaks:?}");
    let limits = [
        ("all", 5),
        ("others", 4),
        ("bulk", 3),
        ("acme", 2),
        ("other", 3),
    ];
    for (who, limit) in limits {
        assert!(peaks[who] <= limit, "{who} had {} in flight", peaks[who]);
    }

    let sum = |count: fn(&Pack) -> u64| packs.iter().map(count).sum::<u64>();
    assert_eq!(sum(|pack| pack.broken), 0, "no client got another error");
    assert_eq!(sum(|pack| pack.attempts), CALLS * packs.len() as u64);
    assert!(sum(|pack| pack.killed) > 0 && sum(|pack| pack.answered) > 0);

    let kernel = Maps::of(controller.pid())?;
    let words = kernel.first_lane()?;
    assert!(words.is_quiet(), "the kernel still counts {words:?}");
    let left = kernel.account_slots()?;
    assert!(left.is_empty(), "accounts still have {left:?} slots");

    let metrics = controller.metrics()?;
    let outcomes = metrics.outcomes("gateway");
    println!("{outcomes:?}");
    let connects = f64::from(words.connects);
    assert_eq!(connects, outcomes.total());
    // A client may die between its own count and its connect, or between the answer and its count.
    let killed = sum(|pack| pack.killed) as f64;
    let within = |own: u64, seen: f64| (own as f64) <= seen + killed && seen <= own as f64 + killed;
    assert!(within(sum(|pack| pack.attempts), connects));
    assert!(within(sum(|pack| pack.refused), outcomes.refused));
    assert!(within(sum(|pack| pack.expired), outcomes.expired));
    assert!(within(sum(|pack| pack.gave_up), outcomes.gone));
    assert_eq!(metrics.sum("shaper_events_lost_total", &[]), 0.0);
    Ok(())
}
