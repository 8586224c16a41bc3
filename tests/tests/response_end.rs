//! When a response is over, and the slot with it: by length, by the last chunk, by silence; and when it is not.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use shaper_tests::clock::median;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Latch, TlsVersion};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::script::script;
use shaper_tests::stage::{Scale, Stage};

const PATIENCE: Duration = Duration::from_secs(30);

/// `idle_release` in these lanes: what silence costs.
const SILENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize)]
struct Call {
    status: u16,
}

/// Makes one call and keeps the connection until it is killed.
const CALLS_AND_STAYS: &str = r#"
method, headers = ARGUMENTS[0], ARGUMENTS[1]
connection = dial()
if "100-continue" in headers:
    message = request(method, label="first", headers=headers)
    head, body = message[:-LONG], message[-LONG:]
    connection.sendall(head)
    assert read_head(connection)[0] == 100
    connection.sendall(body)
else:
    body = 0 if method in ("GET", "HEAD") else LONG
    connection.sendall(request(method, body=body, label="first", headers=headers))
status, _ = read_response(connection, method)
signal.pause()
"#;

/// Makes one call.
const CALLS: &str = r#"
connection = dial()
connection.sendall(request(label="second"))
report(status=read_response(connection)[0])
"#;

/// The request of the connection whose slot is watched.
#[derive(Clone, Copy, Debug)]
struct First {
    method: &'static str,
    /// Header lines, each with its end.
    headers: &'static str,
}

const POST: First = First {
    method: "POST",
    headers: "",
};

/// From the end of one answer, on a connection that stays open, to the first byte of the request that waited for its
/// slot: both by the gateway's own clock, the median of a few.
fn slot_changes_hands_after(
    what: &str,
    tls: Option<TlsVersion>,
    first: First,
    answer: &Answer,
) -> Result<Duration> {
    let rounds = Scale::asked().pick(10, 2);
    let stage = Stage::set()?;
    let mut delays = Vec::new();
    let latches: Vec<Latch> = (0..rounds).map(|_| Latch::shut()).collect();
    let remaining = std::sync::Mutex::new(latches.clone().into_iter());
    let answer = answer.clone();
    let mut gateway = Gateway::builder().listen_v4()?.answer_by(move |request| {
        if request.label.as_deref() != Some("first") {
            return Answer::at_once();
        }
        let next = remaining.lock().map(|mut latches| latches.next());
        match next {
            Ok(Some(latch)) => answer.clone().not_before(&latch),
            _ => Answer::never(),
        }
    });
    if let Some(version) = tls {
        gateway = gateway.tls(version);
    }
    let gateway = gateway.start()?;
    let lane = LaneFile::over(gateway.addresses())
        .connect_hold(Duration::ZERO)
        .line(&format!("idle_release = \"{}ms\"", SILENCE.as_millis()));
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;

    for latch in &latches {
        let stays = script::<Call>("first", &gateway, CALLS_AND_STAYS)
            .argument(first.method)
            .argument(first.headers)
            .spawn_in(&stage.default)?;
        controller.wait_for("gateway", 1, 0)?;
        let second = script::<Call>("second", &gateway, CALLS).spawn_in(&stage.default)?;
        controller.wait_for("gateway", 1, 1)?;
        // Until its request is there, and held.
        sleep(Duration::from_millis(300));
        latch.open();
        assert_eq!(second.finish(PATIENCE)?.0.status, 200);
        let requests = gateway.tally().requests;
        let [.., before, after] = requests.as_slice() else {
            anyhow::bail!("two requests should have come: {requests:?}");
        };
        assert_eq!(after.request.label.as_deref(), Some("second"));
        let answered = before.answered.context("the first was answered")?;
        delays.push(after.first_byte.since(answered));
        stays.kill9()?;
        controller.wait_for("gateway", 0, 0)?;
    }
    assert_eq!(gateway.tally().peak_in_service, 1);
    let overruns = controller.metrics()?.sum("shaper_overruns_total", &[]);
    assert_eq!(overruns, 0.0, "{what}: overruns");
    let median = median(&delays);
    println!("{what}: the slot changed hands within {median:?} at the median of {delays:?}");
    Ok(median)
}

/// Ten times as much as usual; silence would take as long again and more.
const AT_ONCE: Duration = Duration::from_millis(300);

/// The promise, for machines with time.
fn at_once() -> Duration {
    Scale::asked().pick(Duration::from_millis(50), AT_ONCE)
}

fn known_end(what: &str, first: First, answer: &Answer) -> Result<()> {
    let after = slot_changes_hands_after(what, None, first, answer)?;
    assert!(after < at_once(), "{what}: {after:?}");
    Ok(())
}

/// B10: a response ends with the last byte of its `Content-Length`, however large.
#[test]
fn a_content_length_gives_the_slot_back_at_once() -> Result<()> {
    known_end(
        "Content-Length",
        POST,
        &Answer::at_once().sized(1024 * 1024),
    )
}

/// B10: 204 has no body.
#[test]
fn no_content_gives_the_slot_back_at_once() -> Result<()> {
    known_end("204", POST, &Answer::no_content())
}

/// B10: 304 has no body, whatever length it tells.
#[test]
fn not_modified_gives_the_slot_back_at_once() -> Result<()> {
    known_end("304", POST, &Answer::not_modified())
}

/// B10: the answer to HEAD has no body, whatever length it tells.
#[test]
fn the_answer_to_a_head_request_gives_the_slot_back_at_once() -> Result<()> {
    let first = First {
        method: "HEAD",
        headers: concat!(
            "X-Long: ................................................................",
            "................................................................\r\n"
        ),
    };
    known_end("HEAD", first, &Answer::at_once().sized(5000))
}

/// A7: "100 Continue" is no answer: the slot stays for the upload and goes with the answer to it.
#[test]
fn an_upload_that_waits_for_100_continue_gives_the_slot_back_at_its_end() -> Result<()> {
    let first = First {
        headers: "Expect: 100-continue\r\n",
        ..POST
    };
    known_end("100-continue", first, &Answer::at_once())
}

fn chunked_end(what: &str, tls: Option<TlsVersion>) -> Result<()> {
    let events = Answer::at_once().events(3, Duration::from_millis(20));
    let after = slot_changes_hands_after(what, tls, POST, &events)?;
    assert!(after < at_once(), "{what}: {after:?}");
    Ok(())
}

/// B10: the last chunk ends a stream.
#[test]
fn a_last_chunk_gives_the_slot_back_at_once() -> Result<()> {
    chunked_end("last chunk in the clear", None)
}

/// B10.
#[test]
fn a_last_chunk_in_a_record_of_its_own_gives_the_slot_back_at_once_over_tls_1_2() -> Result<()> {
    chunked_end("last chunk over TLS 1.2", Some(TlsVersion::V1_2))
}

/// B10.
#[test]
fn a_last_chunk_in_a_record_of_its_own_gives_the_slot_back_at_once_over_tls_1_3() -> Result<()> {
    chunked_end("last chunk over TLS 1.3", Some(TlsVersion::V1_3))
}

/// B10: in the clear the last chunk is seen also at the end of a longer piece.
#[test]
fn a_last_chunk_behind_the_last_event_gives_the_slot_back_at_once() -> Result<()> {
    known_end(
        "last chunk behind the last event",
        POST,
        &Answer::at_once()
            .events(3, Duration::from_millis(20))
            .joined_with_its_end(),
    )
}

/// B10: a TLS record that holds the last event and the last chunk looks like any other: silence decides.
#[test]
fn a_last_chunk_hidden_in_a_tls_record_leaves_it_to_silence() -> Result<()> {
    let events = Answer::at_once()
        .events(3, Duration::from_millis(20))
        .joined_with_its_end();
    let what = "last chunk hidden in a record";
    let after = slot_changes_hands_after(what, Some(TlsVersion::V1_3), POST, &events)?;
    assert!(
        (SILENCE..SILENCE + AT_ONCE).contains(&(after + Duration::from_millis(5))),
        "{after:?}"
    );
    Ok(())
}

/// A stream of events with this gap between them, the only user of a lane with this `idle_release`. The overruns
/// counted after the first half and in all.
fn stream_with_gaps(gap: Duration, idle_release: Duration, events: usize) -> Result<(f64, f64)> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once().events(events, gap))?;
    let lane = LaneFile::over(gateway.addresses()).line(&format!(
        "idle_release = \"{}ms\"",
        idle_release.as_millis()
    ));
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;
    let overruns = || -> Result<f64> {
        Ok(controller
            .metrics()?
            .sum("shaper_overruns_total", &[("lane", "gateway")]))
    };
    let stream = script::<Call>("stream", &gateway, CALLS).spawn_in(&stage.default)?;
    controller.wait_for("gateway", 1, 0)?;
    sleep(gap * events as u32 / 2);
    let halfway = overruns()?;
    assert_eq!(stream.finish(PATIENCE)?.0.status, 200);
    controller.wait_for("gateway", 0, 0)?;
    let all = overruns()?;
    println!(
        "gaps of {gap:?} at idle_release {idle_release:?}: {halfway} overruns halfway, {all} in all"
    );
    Ok((halfway, all))
}

/// A7: a stream that pauses for less than `idle_release` is never taken for finished.
#[test]
fn a_stream_that_pauses_briefly_never_loses_its_slot() -> Result<()> {
    let idle_release = Scale::asked().pick(Duration::from_secs(2), Duration::from_millis(600));
    let overruns = stream_with_gaps(idle_release.mul_f64(0.8), idle_release, 6)?;
    assert_eq!(overruns, (0.0, 0.0));
    Ok(())
}

/// A7: one that pauses for longer takes its slot back each time, until the lane waits longer by itself.
#[test]
fn a_stream_that_pauses_for_long_teaches_the_lane_to_wait() -> Result<()> {
    let idle_release = Scale::asked().pick(Duration::from_secs(1), Duration::from_millis(300));
    // Between the first guess and the next, which is twice as long.
    let gap = idle_release.mul_f64(1.5);
    let (halfway, all) = stream_with_gaps(gap, idle_release, 8)?;
    assert!((1.0..=2.0).contains(&halfway), "{halfway} overruns halfway");
    assert_eq!(all, halfway, "overruns grew in the second half");
    Ok(())
}
