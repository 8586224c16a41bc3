//! `incident`: what happened without shaper, again, and with what would have prevented it.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
};

use anyhow::{Context, Result};
use shaper_tests::{
    controller::Controller,
    incident::{BEARS, Incident, LIMIT, Replay},
    stage::Stage,
};

use crate::{
    haproxy::{Forward, Haproxy},
    plot::{Panel, Plot},
    progress::Progress,
    report::{Cell, Goal, Report, Table, Unit},
};

/// What stands between the clients and the gateway.
#[derive(Clone, Copy)]
enum Guard {
    Nothing,
    Shaper,
    Haproxy,
}

impl Guard {
    const ALL: [Self; 3] = [Self::Nothing, Self::Shaper, Self::Haproxy];

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "without shaper",
            Self::Shaper => "shaper",
            Self::Haproxy => "HAProxy, maxconn and queue",
        }
    }

    fn replay(self) -> Result<Replay> {
        let stage = Stage::set()?;
        let incident = Incident::full();
        let gateway = incident.gateway()?;
        let mut front = gateway.address();
        let (_controller, _haproxy) = match self {
            Self::Nothing => (None, None),
            Self::Shaper => {
                let lane = Incident::lane(&gateway);
                let controller = Controller::builder(&stage)?.lane("gateway", lane)?;
                (Some(controller.start()?), None)
            }
            Self::Haproxy => {
                front = free_address()?;
                let forward = Forward {
                    from: front,
                    to: gateway.address(),
                    limit: LIMIT,
                };
                (None, Some(Haproxy::start(None, &[forward])?))
            }
        };
        incident.replay(&stage, &gateway, front)
    }
}

/// Replays it, and draws it as `plot` if there is one.
pub fn run(plot: Option<&Path>) -> Result<Report> {
    let progress = Progress::new("incident", Guard::ALL.len());
    let head = [
        "guard",
        "answered",
        "goodput",
        "client timeouts",
        "the prompt waited",
        "most at once",
        "nothing done for",
        "all over after",
    ];
    let mut table = Table::new(
        "The incident twenty times as fast, once each: fifteen reviews, three coders, five subprocess calls and a person at \
         a prompt, and a gateway that serves eight at once and gets nothing done above twelve.",
        &head,
    );
    let mut goals = Vec::new();
    let mut panels = Vec::new();
    for guard in Guard::ALL {
        progress.step(guard.name());
        let replay = guard.replay()?;
        let figures = replay.figures();
        panels.push(Panel {
            title: format!(
                "{}: {} of {} calls answered",
                guard.name(),
                figures.answered,
                figures.calls
            ),
            steps: replay.at_gateway(),
        });
        let nanos =
            |time: std::time::Duration| Cell::Value(time.as_nanos() as f64, Unit::Nanoseconds);
        let answered = figures.answered as f64 / figures.calls as f64;
        let cells = [
            Cell::Value(answered, Unit::Share),
            Cell::Value(figures.goodput, Unit::PerSecond),
            Cell::Value(f64::from(figures.timeouts), Unit::Count),
            figures.prompt_wait.map_or(Cell::Absent, nanos),
            Cell::Value(figures.peak as f64, Unit::Count),
            nanos(figures.stalled),
            nanos(figures.span),
        ];
        table.push(guard.name(), cells);
        if let Guard::Shaper = guard {
            goals.push(Goal {
                promise: "calls answered in the incident, with shaper".to_owned(),
                wanted: "all".to_owned(),
                measured: Cell::Value(answered, Unit::Share),
                met: figures.answered == figures.calls,
            });
        }
    }
    if let Some(path) = plot {
        fs::write(path, picture(panels).svg())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(Report {
        tables: vec![table],
        goals,
    })
}

fn picture(panels: Vec<Panel>) -> Plot<'static> {
    Plot {
        title: "Requests at the gateway during the incident",
        description: "How many requests the gateway has at a time, without shaper, with it, and with HAProxy. It serves eight at \
                      once, and gets nothing done while it has more than twelve.",
        panels,
        levels: &[(LIMIT, "serves"), (BEARS, "bears")],
        too_much: BEARS,
    }
}

/// One that was free a moment ago.
fn free_address() -> Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .context("cannot find a free port")
}
