//! A gateway that advertises a rate and meters it more strictly: what bursts draw, and an even pace does not.

use std::time::Duration;

use anyhow::Result;
use shaper_tests::client::{curl, finish_all};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Bucket, Gateway};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::{Scale, Stage};
use shaper_tests::stats::Stats;

const PATIENCE: Duration = Duration::from_secs(180);
/// What the gateway takes at once.
const BURST: usize = 3;

/// The advertised rate as a pace, and how often the gateway takes one more: 15 a minute and 4 s, or four times that.
fn advertised() -> (&'static str, Duration) {
    Scale::asked().pick(
        ("per_minute = 15", Duration::from_secs(4)),
        ("per_minute = 60", Duration::from_secs(1)),
    )
}

/// What came of a bunch of calls under one mode of pacing.
struct Drawn {
    refusals: usize,
    under_limit: usize,
    in_stats: u64,
}

fn calls_at_the_advertised_rate(mode: &str) -> Result<Drawn> {
    let calls = Scale::asked().pick(30, 12);
    let (rate, refill) = advertised();
    let stage = Stage::set()?;
    let bucket = Bucket::new(BURST, refill);
    let gateway = Gateway::builder()
        .listen_v4()?
        .answer_by(move |_| {
            if bucket.take() {
                Answer::at_once()
            } else {
                Answer::throttled()
            }
        })
        .start()?;
    let lane = LaneFile::over(gateway.addresses())
        .limit(calls)
        .line(&format!("[pace]\nmode = \"{mode}\"\n{rate}"));
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;
    let clients = (0..calls)
        .map(|_| curl(&gateway.url(), "client").spawn_in(&stage.default))
        .collect::<Result<Vec<_>>>()?;
    finish_all(clients, PATIENCE)?;
    let turned_away = gateway.tally().requests.len() - gateway.tally().served();
    let lane = controller.wait_until("gateway", |lane| {
        lane.gateway_errors_5m.values().sum::<usize>() == turned_away && lane.is_quiet()
    })?;
    let stats = Stats::read(&controller.command("stats", &["--json"])?)?;
    Ok(Drawn {
        refusals: turned_away,
        under_limit: lane.under_limit_5m,
        in_stats: stats.lane("gateway")?.total.gateway_errors_under_limit,
    })
}

/// C3, C8: sending in bursts at the advertised rate draws refusals, all of them under the limit; one start per interval
/// draws none.
#[test]
fn bursts_draw_refusals_under_the_limit_and_an_even_pace_draws_none() -> Result<()> {
    let burst = calls_at_the_advertised_rate("burst")?;
    println!("burst: {} refused", burst.refusals);
    assert!(burst.refusals > 0);
    assert_eq!(burst.under_limit, burst.refusals);
    assert_eq!(burst.in_stats, burst.refusals as u64);
    let even = calls_at_the_advertised_rate("even")?;
    println!("even: {} refused", even.refusals);
    assert_eq!((even.refusals, even.under_limit, even.in_stats), (0, 0, 0));
    Ok(())
}
