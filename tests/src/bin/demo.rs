//! What `cargo xtask demo` shows: twenty-one unmodified `curl`s before a gateway that dislikes a crowd, first without
//! and then with shaper, and what the gateway itself counted.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use shaper_tests::client::{CurlOutcome, CurlReport, Running, curl};
use shaper_tests::clock::median;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Latch, Outcome, Tally};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::snapshot::Lane;
use shaper_tests::stage::Stage;

/// Requests that the gateway works on at once without complaint, and so the lane's limit.
const LIMIT: usize = 4;
const BULK_CLIENTS: usize = 20;
/// When the interactive client comes: all slots are taken, and most bulk clients wait.
const INTERACTIVE_COMES: Duration = Duration::from_millis(1500);
/// How long the gateway works on a request.
const SERVICE_TIME: Duration = Duration::from_secs(1);
/// How long an overloaded gateway sits on the requests beyond its limit before it turns them away.
const OVERLOAD_LASTS: Duration = Duration::from_secs(2);
/// The whole demonstration takes about half of this, and ends here whatever happens.
const RUNNING_TIME: Duration = Duration::from_secs(25);

const LANE: &str = "demo";
const BULK: &str = "bulk";
const INTERACTIVE: &str = "interactive";

fn main() -> ExitCode {
    let shown = Curtain::raise().and_then(|curtain| perform(&curtain));
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        // The signal has reached the clients and the controller too: whatever failed, failed of that.
        Err(_) if ASKED.load(Ordering::Relaxed) => {
            eprintln!("interrupted: everything is cleaned up");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(curtain: &Curtain) -> Result<()> {
    let stage = Stage::set()?;
    println!(
        "A gateway works for {SERVICE_TIME:?} on a request and on {LIMIT} at once. The rest overloads it: they hang for \
         {OVERLOAD_LASTS:?}\nand get a 429. {BULK_CLIENTS} bulk clients come together, then an interactive one. All are \
         plain `curl`.\n\nWithout shaper"
    );
    let free = Overloadable::start()?;
    let reports = send_clients(&stage, &free, curtain, |_| Ok(()))?;
    let free = Act::of(&free.gateway, reports);
    println!("{free}\nWith shaper, max_inflight = {LIMIT}");

    let shaped = Overloadable::start()?;
    let lane = LaneFile::over(shaped.gateway.addresses()).limit(LIMIT);
    let controller = Controller::builder(&stage)?.lane(LANE, lane)?.start()?;
    println!("  in a browser: {}", controller.url("/"));
    let mut screen = Screen::new();
    let reports = send_clients(&stage, &shaped, curtain, |age| {
        screen.show(age, &controller.lane(LANE)?)
    });
    // A stop by signal, whatever has happened: it detaches everything.
    let stopped = controller.stop();
    let shaped = Act::of(&shaped.gateway, reports?);
    stopped?;
    println!("{shaped}");
    println!(
        "The gateway's own peak: {} without shaper, {} with it. Turned away: {} without, {} with.",
        free.tally.peak_in_service,
        shaped.tally.peak_in_service,
        free.turned_away(),
        shaped.turned_away()
    );
    if let Some(ahead) = shaped.ahead_of_interactive() {
        println!(
            "The interactive client came last and overtook {} that waited.",
            BULK_CLIENTS - ahead
        );
    }
    shaped.kept_the_promise()
}

/// When the demonstration has to end: at its time, or when a signal asks.
struct Curtain {
    falls: Instant,
}

/// Set by the handler of the [`ASKING`] signals.
static ASKED: AtomicBool = AtomicBool::new(false);

const ASKING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

extern "C" fn ask(_: c_int) {
    if ASKED.swap(true, Ordering::Relaxed) {
        // SAFETY: async-signal-safe (signal-safety(7)).
        unsafe { nix::libc::_exit(1) }
    }
}

impl Curtain {
    /// From here on a signal asks for the end instead of ending the process, so that everything is cleaned up. A second
    /// one ends it.
    fn raise() -> Result<Self> {
        // A handler and not a blocked mask: children would inherit the mask, and the controller never hear its SIGTERM.
        let action = SigAction::new(
            SigHandler::Handler(ask),
            SaFlags::SA_RESTART,
            SigSet::empty(),
        );
        for signal in ASKING {
            // SAFETY: the handler does nothing but change an atomic and exit, which is async-signal-safe.
            unsafe { sigaction(signal, &action) }
                .with_context(|| format!("cannot handle {signal}"))?;
        }
        Ok(Self {
            falls: Instant::now() + RUNNING_TIME,
        })
    }

    /// # Errors
    /// If it is time to end.
    fn check(&self) -> Result<()> {
        ensure!(!ASKED.load(Ordering::Relaxed), "interrupted");
        ensure!(
            Instant::now() < self.falls,
            "the clients are not done after {RUNNING_TIME:?}"
        );
        Ok(())
    }
}

/// A gateway that dislikes to have more than [`LIMIT`] requests at once.
struct Overloadable {
    gateway: Gateway,
    overload_ends: Latch,
}

impl Overloadable {
    fn start() -> Result<Self> {
        const RETRY_AFTER: Duration = Duration::from_secs(5);
        let overload_ends = Latch::shut();
        let turned_away = Answer::too_many_requests(RETRY_AFTER).not_before(&overload_ends);
        // Signals interrupt poll(2), so they are for the main thread alone; the gateway's threads inherit the mask.
        let asking: SigSet = ASKING.into_iter().collect();
        asking.thread_block().context("cannot block signals")?;
        let gateway = Gateway::builder()
            .listen_v4()?
            .answer(Answer::after(SERVICE_TIME))
            .dislike(LIMIT, turned_away)
            .start();
        asking.thread_unblock().context("cannot unblock signals")?;
        Ok(Self {
            gateway: gateway?,
            overload_ends,
        })
    }
}

/// Lets the clients come and waits for the last to end; `watch` is called all the while with the time since the first
/// came.
fn send_clients(
    stage: &Stage,
    overloadable: &Overloadable,
    curtain: &Curtain,
    mut watch: impl FnMut(Duration) -> Result<()>,
) -> Result<Reports> {
    const STEP: Duration = Duration::from_millis(100);
    const NOW: Duration = Duration::ZERO;
    let url = overloadable.gateway.url();
    let start = Instant::now();
    let mut clients: Vec<(&'static str, Running<CurlReport>)> = Vec::new();
    for _ in 0..BULK_CLIENTS {
        clients.push((BULK, curl(&url, BULK).spawn_in(&stage.bulk)?));
    }
    loop {
        curtain.check()?;
        let age = start.elapsed();
        if age >= INTERACTIVE_COMES && clients.len() == BULK_CLIENTS {
            let late = curl(&url, INTERACTIVE).spawn_in(&stage.interactive)?;
            clients.push((INTERACTIVE, late));
        }
        if age >= OVERLOAD_LASTS {
            overloadable.overload_ends.open();
        }
        watch(age)?;
        let mut running = 0;
        for (_, client) in &mut clients {
            running += usize::from(client.still_runs()?);
        }
        if running == 0 && clients.len() > BULK_CLIENTS {
            break;
        }
        thread::sleep(STEP);
    }
    let mut reports = Reports::new();
    for (class, client) in clients {
        reports.entry(class).or_default().push(client.finish(NOW)?);
    }
    Ok(reports)
}

type Reports = BTreeMap<&'static str, Vec<CurlReport>>;

/// What the gateway and the clients of one act tell afterwards.
struct Act {
    tally: Tally,
    reports: Reports,
}

impl Act {
    fn of(gateway: &Gateway, reports: Reports) -> Self {
        Self {
            tally: gateway.tally(),
            reports,
        }
    }

    fn turned_away(&self) -> usize {
        let turned_away = |outcome| outcome == Outcome::TurnedAway;
        let requests = self.tally.requests.iter();
        requests
            .filter(|request| turned_away(request.outcome))
            .count()
    }

    /// Requests that reached the gateway before the interactive one.
    fn ahead_of_interactive(&self) -> Option<usize> {
        let labels = self.tally.labels();
        labels.iter().position(|label| *label == INTERACTIVE)
    }

    /// # Errors
    /// If the gateway had too many requests at once, or a client had another answer than 200.
    fn kept_the_promise(&self) -> Result<()> {
        let peak = self.tally.peak_in_service;
        ensure!(peak <= LIMIT, "the gateway had {peak} requests at once");
        for report in self.reports.values().flatten() {
            if report.outcome != CurlOutcome::answered() {
                bail!("a client ended with {:?}", report.outcome);
            }
        }
        Ok(())
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peak = self.tally.peak_in_service;
        writeln!(f, "  gateway      at most {peak} requests at once")?;
        for (class, reports) in &self.reports {
            let answered = CurlOutcome::answered();
            let served = |report: &&CurlReport| report.outcome == answered;
            // What is not the gateway's work is the wait, wherever the client spent it.
            let waits: Vec<Duration> = reports
                .iter()
                .filter(served)
                .map(|report| report.total.saturating_sub(SERVICE_TIME))
                .collect();
            write!(
                f,
                "  {class:<12} {} of {} served",
                waits.len(),
                reports.len()
            )?;
            if let Some(longest) = waits.iter().max() {
                let (middle, longest) = (median(&waits).as_secs_f32(), longest.as_secs_f32());
                write!(f, ", waits: median {middle:.1} s, longest {longest:.1} s")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The lane live: a picture that is drawn over itself on a terminal, a line a second elsewhere.
struct Screen {
    terminal: bool,
    lines_drawn: usize,
    next_line: Duration,
}

impl Screen {
    fn new() -> Self {
        Self {
            terminal: io::stdout().is_terminal(),
            lines_drawn: 0,
            next_line: Duration::ZERO,
        }
    }

    fn show(&mut self, age: Duration, lane: &Lane) -> Result<()> {
        const SECOND: Duration = Duration::from_secs(1);
        let inflight = bar(&lane.inflight_by_priority);
        let queued = bar(&lane.queued_by_priority);
        let age_s = age.as_secs_f32();
        if self.terminal {
            let mut out = io::stdout().lock();
            if self.lines_drawn > 0 {
                // Up to the picture's first line, and clear from there.
                write!(out, "\x1b[{}A\x1b[J", self.lines_drawn)?;
            }
            let free = ".".repeat(lane.limit.saturating_sub(lane.inflight));
            writeln!(out, "  {age_s:4.1} s  I interactive  D default  B bulk")?;
            writeln!(out, "  slots   {:>2}  {inflight}{free}", lane.inflight)?;
            writeln!(out, "  queue   {:>2}  {queued}", lane.queued)?;
            self.lines_drawn = 3;
        } else if age >= self.next_line {
            println!(
                "  {age_s:4.1} s  slots {} of {} [{inflight}]  queue {} [{queued}]",
                lane.inflight, lane.limit, lane.queued
            );
            self.next_line = age + SECOND;
        }
        Ok(())
    }
}

/// A letter for each, the most urgent class first.
fn bar(by_priority: &BTreeMap<String, usize>) -> String {
    [(INTERACTIVE, "I"), ("default", "D"), (BULK, "B")]
        .into_iter()
        .map(|(class, letter)| letter.repeat(by_priority.get(class).copied().unwrap_or(0)))
        .collect()
}
