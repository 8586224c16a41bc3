//! `incident`: what happened without shaper, again, and with what would have prevented it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context, Result};
use shaper_tests::{
    controller::Controller,
    incident::{Figures, Incident, LIMIT},
    stage::Stage,
};

use crate::{
    haproxy::{Forward, Haproxy},
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
            Self::Nothing => "without",
            Self::Shaper => "shaper",
            Self::Haproxy => "HAProxy, maxconn and queue",
        }
    }

    fn replay(self) -> Result<Figures> {
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
        Ok(incident.replay(&stage, &gateway, front)?.figures())
    }
}

pub fn run() -> Result<Report> {
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
    for guard in Guard::ALL {
        progress.step(guard.name());
        let figures = guard.replay()?;
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
    Ok(Report {
        tables: vec![table],
        goals,
    })
}

/// One that was free a moment ago.
fn free_address() -> Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .context("cannot find a free port")
}
