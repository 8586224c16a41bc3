//! What shaper costs those who wait for nothing: no wake-up of the controller, and programs that stay small. Counts, not
//! times: they are the same on every machine.

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::unistd::Pid;
use serde::Deserialize;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::program_stats::{Programs, Size};
use shaper_tests::script::script;
use shaper_tests::stage::{Scale, Stage};

const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Deserialize)]
struct Done {
    count: usize,
}

/// Connects and closes, one after the other.
const CONNECTS: &str = r#"
count = int(ARGUMENTS[0])
for _ in range(count):
    plain().close()
report(count=count)
"#;

/// Makes requests on one connection, one after the other.
const REQUESTS: &str = r#"
count = int(ARGUMENTS[0])
connection = dial()
for _ in range(count):
    assert call(connection) == 200
report(count=count)
"#;

/// How often all threads of a process have gone to sleep, and so been woken.
fn naps(process: Pid) -> Result<u64> {
    let directory = format!("/proc/{process}/task");
    let mut sum = 0;
    for task in fs::read_dir(&directory).with_context(|| directory.clone())? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        let naps = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let naps = naps.context("the kernel counts no context switches")?;
        sum += naps.trim().parse::<u64>()?;
    }
    Ok(sum)
}

/// Processor time that a process has used.
fn used(process: Pid) -> Result<Duration> {
    let path = format!("/proc/{process}/schedstat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    // Nanoseconds first (Documentation/scheduler/sched-stats.rst), of the first thread, which is the loop's.
    let nanoseconds = text.split(' ').next().context("schedstat is empty")?;
    Ok(Duration::from_nanos(nanoseconds.parse()?))
}

/// Wake-ups of the controller while `program` does its work so many times in a lane with slots to spare, beyond those that
/// it has with nothing to do: less than one for twenty times. Some there are, for it is woken when the ring is a quarter full
/// and reads it in turns.
fn leaves_the_controller_asleep(what: &str, program: &str, answer: Answer) -> Result<()> {
    const IDLE: Duration = Duration::from_secs(3);
    let count = Scale::asked().pick(10_000, 2_000);
    let stage = Stage::set()?;
    let gateway = Gateway::answering(answer)?;
    let lane = LaneFile::over(gateway.addresses()).limit(100);
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;
    let process = controller.pid();

    let (before, idle_before) = (naps(process)?, used(process)?);
    sleep(IDLE);
    let a_second = (naps(process)? - before) as f64 / IDLE.as_secs_f64();
    // One that does not sleep has no naps either.
    let share = (used(process)? - idle_before).as_secs_f64() / IDLE.as_secs_f64();
    assert!(share < 0.3, "idle, it takes {share:.2} of a processor");

    let (before, began) = (naps(process)?, Instant::now());
    let client = script::<Done>(what, &gateway, program)
        .argument(count.to_string())
        .spawn_in(&stage.default)?;
    assert_eq!(client.finish(PATIENCE)?.0.count, count);
    let seconds = began.elapsed().as_secs_f64();
    let more = (naps(process)? - before) as f64 - a_second * seconds;
    println!("{what}: {more:.0} wake-ups for {count}, besides {a_second:.1} a second");
    assert!(
        more < count as f64 / 20.0,
        "{what}: {more:.0} wake-ups for {count}"
    );
    controller.wait_for("gateway", 0, 0)?;
    Ok(())
}

/// The kernel hands slots out and takes them back by itself where nobody waits.
#[test]
fn connects_with_slots_to_spare_wake_nobody() -> Result<()> {
    leaves_the_controller_asleep("connects", CONNECTS, Answer::at_once())
}

/// B10: so it does for requests on a connection that is kept, whose slot comes back with each answer's last byte.
#[test]
fn requests_with_slots_to_spare_wake_nobody() -> Result<()> {
    leaves_the_controller_asleep("requests", REQUESTS, Answer::at_once())
}

/// B10: the end of a stream, which only the controller can tell, is left to when it wakes up anyway.
#[test]
fn streams_with_slots_to_spare_wake_nobody() -> Result<()> {
    let events = Answer::at_once().events(1, Duration::ZERO);
    leaves_the_controller_asleep("streams", REQUESTS, events)
}

/// What each program may have: bytes as the kernel runs it before its own compiler, and instructions that the verifier
/// follows. A tenth or two more than on Linux 6.18 when this was written; raise them with a reason.
const CEILINGS: [(&str, Size); 8] = [
    ("shaper_connect4", ceiling(24_000, 95_000)),
    ("shaper_connect6", ceiling(24_000, 55_000)),
    ("shaper_egress", ceiling(68_000, 40_000)),
    ("shaper_ingress", ceiling(33_000, 150_000)),
    ("shaper_release", ceiling(23_000, 5_500)),
    // They ask where an unspecified address leads.
    ("shaper_sendmsg4", ceiling(2_300, 4_500)),
    ("shaper_sendmsg6", ceiling(2_300, 4_500)),
    ("shaper_sockops", ceiling(20_000, 4_200)),
];

const fn ceiling(bytes: u64, verified: u64) -> Size {
    Size { bytes, verified }
}

#[test]
fn the_kernel_programs_stay_within_their_ceilings() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()))?
        .start()?;
    let sizes: BTreeMap<String, Size> = Programs::of(controller.pid())?.sizes()?;
    for (name, ceiling) in CEILINGS {
        let size = sizes.get(name).with_context(|| format!("no {name}"))?;
        println!("{name}: {size:?}");
        assert!(
            size.bytes <= ceiling.bytes && size.verified <= ceiling.verified,
            "{name} has grown: {size:?}, and may have {ceiling:?}"
        );
    }
    assert_eq!(sizes.len(), CEILINGS.len(), "{sizes:?}");
    Ok(())
}
