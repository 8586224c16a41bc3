//! `memory`: what waiters cost the host, and what watching over them costs its CPUs.

use std::{
    fs,
    hint::black_box,
    net::{Ipv4Addr, SocketAddr},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use nix::{time::ClockId, unistd::Pid};
use shaper_tests::{
    controller::Controller, kernel_state::Maps, lane_file::LaneFile, netns::VethPair, open_files,
    stage::Stage,
};

use crate::{
    gateway::{self, Gateway},
    haproxy::{Forward, Haproxy},
    order::Order,
    progress::Progress,
    report::{Cell, Goal, Report, Table, Unit},
    worker::Worker,
};

const WAITERS: [usize; 4] = [0, 1_000, 10_000, 50_000];

/// Sockets of one client process, within the number of files that a process may open by default on most hosts.
const A_PROCESS: usize = 10_000;

/// Pages of memory that stand for the code and data of a small program's turn.
const PAGES: usize = 100;

/// The number that the goals are for.
const PROMISED: usize = 10_000;

/// How long the gateway works on the request before which all others wait: longer than the benchmark takes. A connection
/// without a request would lose its slot after a second, as one that was opened ahead of need.
const SERVICE_TIME: Duration = Duration::from_secs(3600);

/// After this nothing is new to a process any more. After anything has happened the controller compares its picture with the
/// kernel's tables three more times, at intervals of five seconds, and then once a minute.
const SETTLE: Duration = Duration::from_secs(25);

/// For how long a process is watched that has nothing to do.
const WATCH: Duration = Duration::from_secs(10);

/// More addresses than one, for a client has but so many ports for each.
const ADDRESSES: u8 = 4;
const LANE_PORT: u16 = 8001;
const PLAIN_PORT: u16 = 8002;
const HAPROXY_PORT: u16 = 8003;

/// What a process and the kernel need for so many waiters.
struct Need {
    waiters: usize,
    resident: f64,
    /// Of it what no other process could share.
    anonymous: f64,
    /// Share of a CPU while nothing happens.
    cpu: f64,
    /// Of the kernel's slabs since there were no waiters: their sockets at both ends, and what is kept about them.
    slabs: f64,
}

pub fn run() -> Result<Report> {
    let stage = Stage::set()?;
    let pair = VethPair::create()?;
    let netns = &pair.client;
    netns.set("net/ipv4/ip_local_port_range", "16384 65535")?;
    let addresses = |port| -> Vec<SocketAddr> {
        let host = |last| Ipv4Addr::new(127, 0, 0, last);
        (1..=ADDRESSES)
            .map(|last| (host(last), port).into())
            .collect()
    };
    let listeners: Result<Vec<_>> = addresses(LANE_PORT)
        .into_iter()
        .chain([(Ipv4Addr::LOCALHOST, PLAIN_PORT).into()])
        .map(|address| gateway::listener(netns, address))
        .collect();
    let gateway = Gateway::start(listeners?)?;
    gateway.work_for(SERVICE_TIME);
    let progress = Progress::new("memory", 2 * WAITERS.len());

    let (shaper, maps) = {
        let lane = LaneFile::over(&addresses(LANE_PORT)).limit(1).queue(60_000);
        let lane = lane.timeout(Duration::from_secs(3600));
        let controller = Controller::builder(&stage)?.lane("bench", lane)?.start()?;
        let start = || Worker::start(&stage.default, netns);
        let maps = Maps::of(controller.pid())?.bytes();
        let needs = needs(
            &start,
            controller.pid(),
            &addresses(LANE_PORT),
            usize::MAX,
            &progress,
            // It may be too busy with those who come to answer.
            |waiters| {
                controller
                    .lane("bench")
                    .is_ok_and(|lane| lane.queued >= waiters)
            },
        )?;
        (needs, maps)
    };
    let haproxy = {
        let forward = Forward {
            from: (Ipv4Addr::UNSPECIFIED, HAPROXY_PORT).into(),
            to: (Ipv4Addr::LOCALHOST, PLAIN_PORT).into(),
            limit: 1,
        };
        let haproxy = Haproxy::start(Some(netns), &[forward])?;
        let start = || Worker::start(&stage.outside, netns);
        // It has a descriptor for each who waits.
        let room = open_files::raise()?;
        needs(
            &start,
            haproxy.pid(),
            &addresses(HAPROXY_PORT),
            room,
            &progress,
            |_| true,
        )?
    };
    let floor = cpu_of_waking(WATCH)?;
    Ok(report(&shaper, &haproxy, maps, floor))
}

/// What a thread takes of a CPU that wakes as often as a controller shows signs of life, and touches a little memory: on
/// some virtual machines memory that has lain still for a moment is dear.
fn cpu_of_waking(watch: Duration) -> Result<f64> {
    const PAUSE: Duration = Duration::from_millis(500);
    const PAGE: usize = 4096;
    let mut pages = vec![0_u8; PAGES * PAGE];
    let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
    let before = Duration::from(clock.now()?);
    let begun = Instant::now();
    while begun.elapsed() < watch {
        sleep(PAUSE);
        for page in pages.chunks_mut(PAGE) {
            page[0] = black_box(page[0]).wrapping_add(1);
        }
    }
    let used = Duration::from(clock.now()?) - before;
    Ok(used.as_secs_f64() / begun.elapsed().as_secs_f64())
}

/// Lets more and more wait, as long as there are less than `room`, and looks at `process` each time.
fn needs(
    start_client: &dyn Fn() -> Result<Worker>,
    process: Pid,
    to: &[SocketAddr],
    room: usize,
    progress: &Progress,
    all_wait: impl Fn(usize) -> bool,
) -> Result<Vec<Need>> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let mut clients = Vec::new();
    let mut come = |count: usize| -> Result<()> {
        let mut left = count;
        while left > 0 {
            let mut client = start_client()?;
            let count = left.min(A_PROCESS);
            let to = to.to_vec();
            client.ask(&Order::Wait { to, count })?;
            clients.push(client);
            left -= count;
        }
        Ok(())
    };
    let mut holder = start_client()?;
    holder.ask(&Order::Hold { to: to[0] })?;
    let (mut present, mut slabs_before) = (0, None);
    let mut needs = Vec::new();
    for waiters in WAITERS.into_iter().filter(|waiters| *waiters < room) {
        progress.step(&format!("{waiters} waiters"));
        come(waiters - present)?;
        present = waiters;
        let deadline = Instant::now() + PATIENCE;
        while !all_wait(waiters) {
            ensure!(
                Instant::now() < deadline,
                "{waiters} do not wait after {PATIENCE:?}"
            );
            sleep(Duration::from_millis(100));
        }
        sleep(SETTLE);
        let before = cpu_time(process)?;
        sleep(WATCH);
        let cpu = (cpu_time(process)? - before).as_secs_f64() / WATCH.as_secs_f64();
        let slabs = kilobytes("/proc/meminfo", "Slab")?;
        let status = format!("/proc/{process}/status");
        needs.push(Need {
            waiters,
            resident: kilobytes(&status, "VmRSS")?,
            anonymous: kilobytes(&status, "RssAnon")?,
            cpu,
            slabs: (slabs - *slabs_before.get_or_insert(slabs)).max(0.0),
        });
    }
    Ok(needs)
}

fn report(shaper: &[Need], haproxy: &[Need], maps: u64, floor: f64) -> Report {
    let caption = format!(
        "Resident memory of the controller and of HAProxy while connects wait behind one, what of it is private, and the \
         share of one CPU that the process takes while nothing happens, between the comparisons of once a minute. Slabs: what the kernel's grew by, the clients' own \
         sockets included. The kernel programs' maps are {} whatever the number of waiters; the controller maps part of \
         them into its own memory.",
        Cell::Value(maps as f64, Unit::Bytes)
    );
    let head = ["", "resident", "private", "idle CPU", "kernel slabs"];
    let mut table = Table::new(caption, &head);
    for (process, needs) in [("shaper", shaper), ("HAProxy", haproxy)] {
        for need in needs {
            let bytes = |value| Cell::Value(value, Unit::Bytes);
            let cells = [
                bytes(need.resident),
                bytes(need.anonymous),
                Cell::Value(need.cpu, Unit::Share),
                bytes(need.slabs),
            ];
            table.push(format!("{process}, {} waiters", need.waiters), cells);
        }
    }
    let label = format!("a thread that wakes twice a second and touches {PAGES} pages");
    let cells = [
        Cell::Absent,
        Cell::Absent,
        Cell::Value(floor, Unit::Share),
        Cell::Absent,
    ];
    table.push(label, cells);
    let goals = shaper
        .iter()
        .find(|need| need.waiters == PROMISED)
        .map(goals);
    Report {
        tables: vec![table],
        goals: goals.into_iter().flatten().collect(),
    }
}

fn goals(need: &Need) -> [Goal; 2] {
    const MEMORY: f64 = 64e6;
    const CPU: f64 = 0.005;
    [
        Goal {
            promise: format!("the controller's resident memory with {PROMISED} waiters"),
            wanted: format!("under {}", Cell::Value(MEMORY, Unit::Bytes)),
            measured: Cell::Value(need.resident, Unit::Bytes),
            met: need.resident < MEMORY,
        },
        Goal {
            promise: format!("its CPU time with {PROMISED} waiters while nothing happens"),
            wanted: format!("not measurable: under {}", Cell::Value(CPU, Unit::Share)),
            measured: Cell::Value(need.cpu, Unit::Share),
            met: need.cpu < CPU,
        },
    ]
}

/// A field of a file in /proc that is told in kilobytes, in bytes.
fn kilobytes(path: &str, field: &str) -> Result<f64> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let value = text.lines().find_map(|line| {
        let value = line.strip_prefix(field)?.strip_prefix(':')?;
        value.trim().strip_suffix(" kB")?.parse::<f64>().ok()
    });
    let value = value.with_context(|| format!("{path} has no {field}"))?;
    Ok(value * 1024.0)
}

/// What all threads of a process have had of the CPUs. In nanoseconds, where `stat` counts ticks.
fn cpu_time(process: Pid) -> Result<Duration> {
    let directory = format!("/proc/{process}/task");
    let mut sum = Duration::ZERO;
    for task in fs::read_dir(&directory).with_context(|| directory.clone())? {
        let path = task?.path().join("schedstat");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
        sum += Duration::from_nanos(nanos.with_context(|| format!("{text:?}"))?);
    }
    Ok(sum)
}
