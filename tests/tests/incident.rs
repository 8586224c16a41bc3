//! The incident that shaper is made for, without and with it.

use anyhow::Result;
use shaper_tests::controller::Controller;
use shaper_tests::incident::{BEARS, Incident, LIMIT, SERVICE};
use shaper_tests::stage::{Scale, Stage};

fn incident() -> Incident {
    Scale::asked().pick(Incident::full(), Incident::brief())
}

/// What is to be prevented: everybody asks at once, the gateway gets nothing done, everybody times out and asks again.
#[test]
fn without_shaper_most_calls_fail_and_the_gateway_stays_above_its_limit() -> Result<()> {
    let stage = Stage::set()?;
    let incident = incident();
    let gateway = incident.gateway()?;
    let replay = incident.replay(&stage, &gateway, gateway.address())?;
    let figures = replay.figures();
    println!("without shaper: {figures}");
    assert!(figures.answered * 2 < figures.calls, "{figures}");
    assert!(figures.peak > BEARS, "{figures}");
    assert!(figures.crowded * 2 > figures.span, "{figures}");
    Ok(())
}

/// D10, A4, A10: with a limit that the gateway can bear, every call is answered, no client loses its patience, and the
/// person at the prompt does not wait for a slot.
#[test]
fn with_shaper_every_call_is_answered_and_the_prompt_does_not_wait() -> Result<()> {
    let stage = Stage::set()?;
    let incident = incident();
    let gateway = incident.gateway()?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", Incident::lane(&gateway))?
        .start()?;
    let replay = incident.replay(&stage, &gateway, gateway.address())?;
    let figures = replay.figures();
    println!("with shaper: {figures}");
    controller.wait_for("gateway", 0, 0)?;
    assert_eq!(figures.answered, figures.calls, "{figures}");
    assert_eq!(figures.timeouts, 0, "{figures}");
    assert!(figures.peak <= LIMIT, "{figures}");
    assert!(
        figures.prompt_wait.is_some_and(|wait| wait < SERVICE),
        "{figures}"
    );
    Ok(())
}
