//! The kernel's maps, the policy's picture and the sockets themselves are compared every few seconds: what has drifted
//! apart is brought together again, counted and logged.

use std::mem::offset_of;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use shaper_common::{Account, CLASS_COUNT, Lane, SlotWord};
use shaper_tests::client::{CurlOutcome, curl};
use shaper_tests::controller::Controller;
use shaper_tests::crowd::{Crowd, Habit};
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::kernel_state::{Maps, detach};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::script::script;
use shaper_tests::stage::Stage;

/// What the crowds take where every lost event may cost a round.
const PATIENCE: Duration = Duration::from_secs(120);

/// One comparison, and a little more.
const ROUND: Duration = Duration::from_secs(6);

#[derive(Debug, Deserialize)]
struct Nothing {}

/// Sends a request and binds its socket to an interface while it waits for the answer.
const BINDS_LATER: &str = r#"
connection = plain()
connection.sendall(request())
connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
signal.pause()
"#;

fn drift(controller: &Controller, kind: &str) -> Result<f64> {
    let metrics = controller.metrics()?;
    Ok(metrics.sum("shaper_drift_total", &[("kind", kind)]))
}

/// E4: events that are lost or come twice delay, and corrupt nothing: after one round nothing is left of it.
#[test]
fn lost_and_repeated_events_leave_no_drift_after_one_round() -> Result<()> {
    const CALLS: u64 = 300;
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::after(Duration::from_millis(20)))?;
    let controller = Controller::builder(&stage)?
        .faults("lose=5,repeat=5,until=1000")
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(4)
                .line("abort_hold = \"200ms\"")
                .line("[account]\nmax_inflight = 3"),
        )?
        .start()?;
    let crowd = Crowd {
        workers: 8,
        kills: 5,
        ..Crowd::new(Habit::Call, gateway.addresses(), "acme", CALLS)
    };
    let report = crowd
        .client()?
        .spawn_in(&stage.cgroups().group("bulk/acme")?)?
        .finish(PATIENCE)?;
    println!("{report:?}");
    assert_eq!((report.attempts, report.broken), (CALLS, 0));
    assert!(gateway.tally().peak_in_service <= 3, "the account's cap");

    sleep(ROUND * 2);
    let found = drift(&controller, "news")?;
    println!("connections whose news went wrong: {found}");
    assert!(
        found > 0.0,
        "nothing was lost: is this a build without debug assertions, which has no fault switch?"
    );
    let kernel = Maps::of(controller.pid())?;
    assert!(controller.lane("gateway")?.is_quiet());
    assert!(
        kernel.first_lane()?.is_quiet(),
        "{:?}",
        kernel.first_lane()?
    );
    assert!(kernel.account_slots()?.is_empty());
    sleep(ROUND);
    assert_eq!(drift(&controller, "news")?, found, "drift without faults");
    assert_eq!(
        drift(&controller, "counts")?,
        0.0,
        "the kernel's own counts"
    );
    assert!(controller.log().contains("news of connections was lost"));
    Ok(())
}

/// E4: counts that are wrong, however that came, are found and put right: a lane whose slots leaked would serve ever less.
#[test]
fn counts_that_are_wrong_are_found_and_corrected() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(2)
                .line("[account]\nmax_inflight = 1"),
        )?
        .start()?;
    let kernel = Maps::of(controller.pid())?;
    let (lanes, accounts) = (kernel.lanes()?, kernel.accounts()?);
    let slots = lanes.u64(0, offset_of!(Lane, slots));
    // Where nothing has moved for a while, nothing is compared.
    sleep(ROUND * 5);
    // As if two connections had gone without a word: the lane is full for ever.
    let word = SlotWord::from_bits(slots.load(SeqCst));
    slots.store(word.with_credits(0).with_slots(2).bits(), SeqCst);
    lanes.u32(0, offset_of!(Lane, queued)).store(1, SeqCst);
    lanes.u32(0, offset_of!(Lane, class_slots)).store(2, SeqCst);
    accounts.u32(0, offset_of!(Account, slots)).store(5, SeqCst);

    let call = curl(&gateway.url(), "after").spawn_in(&stage.interactive)?;
    // Seen at one round, certain at the next.
    assert_eq!(call.finish(ROUND * 5)?.outcome, CurlOutcome::answered());
    controller.wait_for("gateway", 0, 0)?;
    sleep(ROUND);
    let words = kernel.first_lane()?;
    assert!(words.is_quiet(), "{words:?}");
    assert!(kernel.account_slots()?.is_empty());
    assert_eq!(drift(&controller, "counts")?, 2.0, "a lane and an account");
    let log = controller.log();
    assert!(
        log.contains("lane=\"gateway\"") && log.contains("corrected"),
        "{log}"
    );
    assert_eq!(words.waiting, [0; CLASS_COUNT]);
    Ok(())
}

/// E4: a process that binds its socket to an interface after the connect keeps its slot: it would get past every limit if
/// its record were freed.
#[test]
fn a_socket_bound_to_an_interface_later_keeps_its_slot() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::never())?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(1))?
        .start()?;
    let bound = script::<Nothing>("bound", &gateway, BINDS_LATER).spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 0)?;
    // Missed at one round, looked for everywhere at the next.
    sleep(ROUND * 3);
    controller.wait_for("gateway", 1, 0)?;
    assert_eq!(drift(&controller, "sockets")?, 0.0);
    bound.kill9()?;
    Ok(())
}

/// A20, E4: a connection whose end no program saw is found by its socket's absence, and its slot comes back.
#[test]
fn a_socket_that_vanishes_without_a_word_is_found() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::never())?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(1))?
        .start()?;
    let vanishing = curl(&gateway.url(), "vanishing").spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 0)?;
    let kernel = Maps::of(controller.pid())?;
    detach(controller.pid(), &["shaper_sockops", "shaper_release"])?;
    vanishing.kill9()?;
    controller.wait_until_within("gateway", ROUND * 5, |lane| lane.is_quiet())?;
    let log = controller.log();
    assert!(log.contains("gone without a word"), "{log}");
    assert_eq!(drift(&controller, "sockets")?, 1.0);
    assert!(
        kernel.first_lane()?.is_quiet(),
        "{:?}",
        kernel.first_lane()?
    );
    assert_eq!(kernel.records_in_use()?, 0);
    Ok(())
}
