//! One endpoint belongs to one lane, and stands there once.

use super::{
    diagnostic::{Diagnostic, Severity},
    endpoint::EndpointSpec,
    keys::lane::ENDPOINTS,
    lane::ParsedLane,
};

/// Every endpoint that is, contains, or lies within one before it. Names are compared as names: where they lead is
/// known only while running (see [`resolve`](super::resolve)).
pub(super) fn find(lanes: &[ParsedLane<'_>]) -> Vec<Diagnostic> {
    let all: Vec<_> = lanes
        .iter()
        .flat_map(|lane| lane.places.iter().map(move |(spec, at)| (lane, spec, *at)))
        .collect();
    let clash = |index: usize| {
        let (lane, spec, at) = all[index];
        let &(other_lane, other, other_at) = all[..index]
            .iter()
            .find(|(_, other, _)| overlap(spec, other))?;
        let owner = if std::ptr::eq(lane, other_lane) {
            "this lane".to_owned()
        } else {
            format!("lane `{}`", other_lane.lane.name)
        };
        let what = if spec == other {
            format!("{spec} is in {owner} already")
        } else {
            format!("{spec} overlaps {other} of {owner}")
        };
        Some(Diagnostic {
            severity: Severity::Error,
            file: lane.file.to_owned(),
            at: Some(at),
            key: Some(ENDPOINTS.path.to_owned()),
            what: format!("{what} ({}:{other_at})", other_lane.file.display()),
            help: "one endpoint belongs to one lane, once: remove it from one of the two places"
                .to_owned(),
        })
    };
    (0..all.len()).filter_map(clash).collect()
}

fn overlap(one: &EndpointSpec, other: &EndpointSpec) -> bool {
    match (one, other) {
        (EndpointSpec::Literal(one), EndpointSpec::Literal(other)) => one.overlaps(other),
        (EndpointSpec::Name(one), EndpointSpec::Name(other)) => one == other,
        _ => false,
    }
}
