//! What host names lead to now, as far as it may surprise.

use std::{io, net::IpAddr, time::Instant};

use tokio::runtime;

use crate::{
    config::{
        Diagnostic, EndpointSpec, HostPort, LaneConfig, Severity,
        keys::lane as key,
        resolve::{Contested, Resolver, lookup},
    },
    policy::ConnectHold,
};

/// Looks all names up at once. The wait is bounded by the resolver's own.
///
/// # Errors
/// When that cannot be begun.
pub(super) fn warnings(lanes: &[LaneConfig]) -> io::Result<Vec<Diagnostic>> {
    let answers = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(look_up(lanes));
    Ok(judge(lanes, &answers, Instant::now()))
}

type Answer = io::Result<Vec<IpAddr>>;

async fn look_up(lanes: &[LaneConfig]) -> Vec<(HostPort, Answer)> {
    let mut resolver = Resolver::default();
    resolver.set_lanes(lanes);
    let pending: Vec<_> = resolver
        .names()
        .cloned()
        .map(|name| tokio::spawn(async move { (lookup(&name).await, name) }))
        .collect();
    let mut answers = Vec::new();
    for look_up in pending {
        if let Ok((answer, name)) = look_up.await {
            answers.push((name, answer));
        }
    }
    answers
}

fn judge(lanes: &[LaneConfig], answers: &[(HostPort, Answer)], now: Instant) -> Vec<Diagnostic> {
    let mut resolver = Resolver::default();
    resolver.set_lanes(lanes);
    let mut warnings = Vec::new();
    for (name, answer) in answers {
        let lane = lanes
            .iter()
            .find(|lane| lane.endpoints.contains(&EndpointSpec::Name(name.clone())));
        let Some(lane) = lane else { continue };
        match answer {
            Ok(addresses) => {
                resolver.record(now, name, addresses, |_| false);
                if addresses.len() > 1 {
                    warnings.push(several(lane, name, addresses));
                }
            }
            Err(error) => warnings.push(warning(
                lane,
                format!("{name} cannot be looked up: {error}"),
                "correct the name, or the host's resolver; until it has an address, nothing of it is governed".to_owned(),
            )),
        }
    }
    let contested = resolver.assign(lanes).contested;
    warnings.extend(contested.iter().map(|contested| shared(lanes, contested)));
    warnings
}

fn several(lane: &LaneConfig, name: &HostPort, addresses: &[IpAddr]) -> Diagnostic {
    let list: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let connects_wait = lane.enforces()
        && !matches!(lane.rules.connect_hold, ConnectHold::For(time) if time.is_zero());
    let help = if connects_wait {
        "one limit is for all of them. Clients that try the next address when a connect takes long (Node: after 250 ms) \
         need `connect_hold = \"0s\"`"
    } else {
        "one limit is for all of them; split the lane if each address has slots of its own"
    };
    warning(
        lane,
        format!("{name} has {} addresses: {}", list.len(), list.join(", ")),
        help.to_owned(),
    )
}

fn shared(lanes: &[LaneConfig], contested: &Contested) -> Diagnostic {
    let owner = &lanes[contested.owner].name;
    warning(
        &lanes[contested.loser],
        format!(
            "{} leads to {}, which belongs to lane {owner}",
            contested.claim, contested.endpoint
        ),
        "put both into one lane: what shares an address shares its limit".to_owned(),
    )
}

/// About the endpoints of a lane.
fn warning(lane: &LaneConfig, what: String, help: String) -> Diagnostic {
    Diagnostic {
        severity: Severity::Warning,
        file: lane.file().to_owned(),
        at: None,
        key: Some(key::ENDPOINTS.path.to_owned()),
        what,
        help,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Files, Origin, TextFile};

    fn lanes(files: &[(&str, &str)]) -> Vec<LaneConfig> {
        let lane = |(name, text): &(&str, &str)| TextFile {
            path: format!("lanes.d/{name}.toml").into(),
            text: (*text).to_owned(),
        };
        let files = Files {
            origin: Origin::Embedded,
            settings: None,
            lanes: files.iter().map(lane).collect(),
        };
        Config::parse(&files).unwrap().lanes
    }

    fn said(lanes: &[LaneConfig], answers: &[Result<&[&str], &str>]) -> String {
        let mut resolver = Resolver::default();
        resolver.set_lanes(lanes);
        let parsed = |list: &[&str]| list.iter().map(|addr| addr.parse().unwrap()).collect();
        let answers = answers.iter().map(|answer| match answer {
            Ok(list) => Ok(parsed(list)),
            Err(error) => Err(io::Error::other(*error)),
        });
        let answers: Vec<_> = resolver.names().cloned().zip(answers).collect();
        judge(lanes, &answers, Instant::now())
            .iter()
            .map(|warning| format!("{warning}\n"))
            .collect()
    }

    #[test]
    fn a_name_with_one_address_is_nothing_to_warn_of() {
        let lanes = lanes(&[("a", "endpoints = [\"a.test:1\"]\nmax_inflight = 0")]);
        assert_eq!(said(&lanes, &[Ok(&["192.0.2.1"])]), "");
    }

    #[test]
    fn names_without_an_address_with_several_and_with_a_shared_one_are_told() {
        let lanes = lanes(&[
            (
                "a",
                "endpoints = [\"a.test:1\"]\nmax_inflight = 1\nmax_queue = 9\nqueue_timeout = \"1m\"",
            ),
            (
                "b",
                "endpoints = [\"b.test:1\", \"c.test:1\"]\nmax_inflight = 0",
            ),
        ]);
        let answers = [
            Ok(&["192.0.2.1", "192.0.2.2"][..]),
            Ok(&["192.0.2.2"][..]),
            Err("no such name"),
        ];
        assert_eq!(
            said(&lanes, &answers),
            "warning: lanes.d/a.toml: `endpoints`: a.test:1 has 2 addresses: 192.0.2.1, 192.0.2.2
  help: one limit is for all of them. Clients that try the next address when a connect takes long (Node: after 250 ms) need `connect_hold = \"0s\"`
warning: lanes.d/b.toml: `endpoints`: c.test:1 cannot be looked up: no such name
  help: correct the name, or the host's resolver; until it has an address, nothing of it is governed
warning: lanes.d/b.toml: `endpoints`: b.test:1 leads to 192.0.2.2:1, which belongs to lane a
  help: put both into one lane: what shares an address shares its limit
"
        );
    }
}
