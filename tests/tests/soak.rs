//! Very many short connections, with clients that die at random: nothing is left, and everything adds up.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::unistd::Pid;
use shaper_tests::controller::Controller;
use shaper_tests::crowd::{Crowd, Habit, assert_no_other_error};
use shaper_tests::gateway::Gateway;
use shaper_tests::kernel_state::Maps;
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::{Scale, Stage};

const PATIENCE: Duration = Duration::from_secs(900);

/// Longer than `abort_hold` and one comparison.
const AFTERWARDS: Duration = Duration::from_secs(7);

/// Resident memory in bytes.
fn resident(process: Pid) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let kibibytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))
        .context("no VmRSS")?;
    Ok(kibibytes.trim().parse::<u64>()? * 1024)
}

/// A9, A20, D4, D5, E4: 200,000 short connections through a lane of 8, clients killed at random: afterwards every counter
/// is zero, no record is in use, the controller is no larger, and *opened = admitted + refused + expired + gone*.
#[test]
fn after_very_many_connections_nothing_is_left_and_the_totals_add_up() -> Result<()> {
    let scale = Scale::asked();
    let calls: u64 = scale.pick(200_000, 5_000);
    let kills: u64 = scale.pick(400, 40);
    let warm_up = scale.pick(Duration::from_secs(75), Duration::ZERO);
    let stage = Stage::set()?;
    let gateway = Gateway::builder()
        .listen_v4()?
        .listen_v4()?
        .listen_v4()?
        .listen_v4()?
        .start()?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(8)
                .queue(14)
                .timeout(Duration::from_secs(2))
                .line("abort_hold = \"100ms\"")
                // A place in line that is taken over would make one outcome of two connects.
                .line("ticket_grace = \"0s\"")
                .line("[class.bulk]\nqueue_timeout = \"30ms\"\n[account]\nmax_inflight = 6"),
        )?
        .start()?;
    let crowd = |label: &str, connects| {
        let crowd = Crowd {
            workers: 12,
            kills: kills / 2,
            ..Crowd::new(Habit::Call, gateway.addresses(), label, connects)
        };
        crowd.client()?.spawn_in(&stage.cgroups().group(label)?)
    };

    // What the first minute leaves behind is the allocator's, and windows over the last minute; more of it later would be a
    // leak. A run in brief is over before that.
    let begun = Instant::now();
    let mut reports = Vec::new();
    let mut asked = 0;
    loop {
        let warm = [
            crowd("default/acme", calls / 20)?,
            crowd("bulk/other", calls / 20)?,
        ];
        for crowd in warm {
            reports.push(crowd.finish(PATIENCE)?);
        }
        asked += calls / 20 * 2;
        if begun.elapsed() >= warm_up {
            break;
        }
    }
    let before = resident(controller.pid())?;
    let rest = [
        crowd("default/acme", calls / 2)?,
        crowd("bulk/other", calls / 2)?,
    ];
    asked += calls / 2 * 2;
    for crowd in rest {
        reports.push(crowd.finish(PATIENCE)?);
    }
    let took = begun.elapsed();
    controller.wait_for("gateway", 0, 0)?;
    let after = resident(controller.pid())?;
    println!("{reports:#?}\n{asked} connects in {took:?}; resident {before} then {after} bytes");

    sleep(AFTERWARDS);
    let kernel = Maps::of(controller.pid())?;
    let words = kernel.first_lane()?;
    assert!(words.is_quiet(), "the kernel still counts {words:?}");
    assert!(kernel.account_slots()?.is_empty());
    assert_eq!(kernel.records_in_use()?, 0);
    let metrics = controller.metrics()?;
    let outcomes = metrics.outcomes("gateway");
    println!("opened {}: {outcomes:?}", words.connects);
    assert_eq!(f64::from(words.connects), outcomes.total());

    let sum =
        |count: fn(&shaper_tests::crowd::Report) -> u64| reports.iter().map(count).sum::<u64>();
    assert_no_other_error(&reports, &gateway);
    assert_eq!(sum(|report| report.attempts), asked);
    assert!(
        sum(|report| report.killed) >= kills / 2,
        "clients were killed"
    );
    assert_eq!(metrics.sum("shaper_ungoverned_total", &[]), 0.0);
    assert_eq!(metrics.sum("shaper_events_lost_total", &[]), 0.0);
    assert_eq!(metrics.sum("shaper_drift_total", &[]), 0.0);
    let tally = gateway.tally();
    assert!(tally.peak_in_service <= 8, "{}", tally.peak_in_service);
    let grown = after.saturating_sub(before);
    assert!(grown <= 4 << 20, "the controller grew by {grown} bytes");
    // Accounts without connections give their elements back at the second look.
    sleep(AFTERWARDS);
    assert_eq!(kernel.known_accounts()?, 0);
    Ok(())
}
