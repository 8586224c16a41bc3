//! A controller that is killed at any moment and comes back loses nothing: no slot, no gate, no count.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use shaper_tests::client::Running;
use shaper_tests::controller::Controller;
use shaper_tests::crowd::{self, Crowd, Habit, assert_no_other_error};
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::kernel_state::Maps;
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::{Scale, Stage};

const LIMIT: usize = 4;

/// Longer than `abort_hold` and two comparisons.
const AFTERWARDS: Duration = Duration::from_secs(12);

/// A number below `most`, each time another, the same in every run (the finaliser of MurmurHash3).
fn somewhere_below(most: u64, turn: u64) -> u64 {
    let mixed = (turn ^ (turn >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (mixed ^ (mixed >> 33)) % most
}

/// E4, E5, A20: killed at 200 random moments under load, in every second turn once more while it starts: afterwards no drift, no gate in use, every
/// count zero, and the gateway never saw more than the limit.
#[test]
fn after_many_kills_under_load_nothing_has_leaked_and_the_limit_was_kept() -> Result<()> {
    let kills: u64 = Scale::asked().pick(200, 12);
    let stage = Stage::set()?;
    let gateway = Gateway::builder()
        .listen_v4()?
        .listen_v4()?
        .listen_v4()?
        .listen_v4()?
        .answer(Answer::after(Duration::from_millis(15)))
        .start()?;
    let mut controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(LIMIT)
                .connect_hold(Duration::from_millis(100))
                .line("abort_hold = \"100ms\"\nticket_grace = \"0s\"")
                .line("[account]\nmax_inflight = 3"),
        )?
        // Nobody is away for so long, however slow the machine.
        .settings("fail_after = \"60s\"")?
        .stays_attached()?
        .start()?;
    let crowd = |turn: u64| -> Result<Running<crowd::Report>> {
        let group = ["bulk/acme", "default/other", "interactive"][turn as usize % 3];
        let crowd = Crowd {
            workers: 8,
            kills: 10,
            ..Crowd::new(Habit::Call, gateway.addresses(), group, 1000)
        };
        crowd.client()?.spawn_in(&stage.cgroups().group(group)?)
    };

    let mut crowds: Vec<_> = (0..3).map(crowd).collect::<Result<_>>()?;
    let mut reports = Vec::new();
    // What a start takes.
    let mut took = Duration::from_millis(300);
    for turn in 0..kills {
        sleep(Duration::from_micros(somewhere_below(900_000, turn)));
        let mut gone = controller.killed()?;
        if turn % 2 == 1 {
            // The next one, too: while it takes over what there is.
            gone = gone.killed_while_starting(
                took.mul_f64(somewhere_below(1000, turn + kills) as f64 / 1000.0),
            )?;
        }
        let begun = Instant::now();
        controller = gone.restart()?;
        took = begun.elapsed();
        for (index, running) in crowds.iter_mut().enumerate() {
            if !running.still_runs()? {
                let next = crowd(index as u64)?;
                reports.push(std::mem::replace(running, next).finish(Duration::from_secs(5))?);
            }
        }
    }
    let deadline = Instant::now() + Duration::from_secs(300);
    for running in crowds {
        reports.push(running.finish(deadline.saturating_duration_since(Instant::now()))?);
    }
    let tally = gateway.tally();
    let calls: u64 = reports.iter().map(|report| report.attempts).sum();
    println!(
        "{kills} kills, {calls} calls, {} served, at most {} at once",
        tally.served(),
        tally.peak_in_service
    );
    assert!(tally.peak_in_service <= LIMIT, "{}", tally.peak_in_service);
    controller.wait_for("gateway", 0, 0)?;

    sleep(AFTERWARDS);
    assert_no_other_error(&reports, &gateway);
    let kernel = Maps::of(controller.pid())?;
    let words = kernel.first_lane()?;
    assert!(words.is_quiet(), "the kernel still counts {words:?}");
    assert!(kernel.account_slots()?.is_empty());
    assert_eq!(kernel.records_in_use()?, 0);
    let metrics = controller.metrics()?;
    assert_eq!(
        metrics.sum("shaper_drift_total", &[("kind", "counts")]),
        0.0
    );
    assert_eq!(
        metrics.sum("shaper_drift_total", &[("kind", "sockets")]),
        0.0
    );
    assert_eq!(metrics.sum("shaper_ungoverned_total", &[]), 0.0);
    Ok(())
}
