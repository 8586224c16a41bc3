//! A client with one thread and many connections is not stopped by those that wait.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use shaper_tests::client::python;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::{Stage, a_while};

const PATIENCE: Duration = Duration::from_secs(30);

/// Connects, posts and reads on every connection at once, while a ticker measures how late it wakes.
const PROGRAM: &str = r#"
import asyncio, json, statistics, sys, time

host, port, connections = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
PERIOD = 0.010

async def call():
    reader, writer = await asyncio.open_connection(host, port)
    body = b"." * 1024
    head = b"POST / HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % len(body) + body)
    answer = await reader.read()
    writer.close()
    return answer.startswith(b"HTTP/1.1 200 ")

async def tick(late):
    while True:
        due = time.monotonic() + PERIOD
        await asyncio.sleep(PERIOD)
        late.append((time.monotonic() - due) * 1000)

async def main():
    late = []
    ticker = asyncio.create_task(tick(late))
    answers = await asyncio.gather(*(call() for _ in range(connections)), return_exceptions=True)
    ticker.cancel()
    print(json.dumps({
        "answered": sum(answer is True for answer in answers),
        "errors": [repr(answer) for answer in answers if answer is not True],
        "ticks": len(late),
        "median_late_ms": statistics.median(late),
        "max_late_ms": max(late),
    }))

asyncio.run(main())
"#;

#[derive(Debug, Deserialize)]
struct Ticker {
    answered: usize,
    errors: Vec<String>,
    ticks: u32,
    median_late_ms: f64,
    max_late_ms: f64,
}

/// E1: waiting blocks no thread of a client that does not block by itself.
#[test]
fn an_event_loop_stays_on_time_while_forty_five_of_its_connects_are_held() -> Result<()> {
    const CONNECTIONS: usize = 50;
    const LIMIT: usize = 5;
    // A connect that blocked would stop the ticker for as long as it is held, seconds. The rest is a busy machine.
    const LATEST_MS: f64 = 500.0;
    const MEDIAN_MS: f64 = 10.0;
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(LIMIT))?
        .start()?;

    let client = python::<Ticker>("event loop", PROGRAM)
        .argument(gateway.address().ip().to_string())
        .argument(gateway.address().port().to_string())
        .argument(CONNECTIONS.to_string())
        .spawn_in(&stage.default)?;
    controller.wait_for("gateway", LIMIT, CONNECTIONS - LIMIT)?;
    let held = a_while();
    sleep(held);
    release.open();
    let ticker = client.finish(PATIENCE)?.0;

    println!(
        "{} ticks of 10 ms, late by {:.1} ms at the median and {:.1} ms at most",
        ticker.ticks, ticker.median_late_ms, ticker.max_late_ms
    );
    assert_eq!(ticker.answered, CONNECTIONS, "{ticker:?}");
    assert!(ticker.errors.is_empty(), "{ticker:?}");
    assert_eq!(gateway.tally().peak_in_service, LIMIT);
    assert!(
        held.as_millis() < u128::from(ticker.ticks) * 20,
        "half the ticks are missing: {ticker:?}"
    );
    assert!(
        ticker.max_late_ms < LATEST_MS && ticker.median_late_ms < MEDIAN_MS,
        "{ticker:?}"
    );
    controller.wait_for("gateway", 0, 0)?;
    Ok(())
}
