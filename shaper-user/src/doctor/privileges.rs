//! The capabilities of this process.

use super::report::{Finding, Probe};
use crate::kernel::{Capability, missing_capabilities};

/// One finding for each capability.
pub fn examine() -> Vec<Finding> {
    judge(&missing_capabilities(&Capability::RUNNING))
}

fn judge(missing: &[Capability]) -> Vec<Finding> {
    Capability::RUNNING
        .into_iter()
        .map(|capability| {
            let probe = Probe::Capability(capability);
            let use_of_it = use_of(capability);
            if !missing.contains(&capability) {
                return probe.ok(use_of_it);
            }
            let detail = format!("not held; it {use_of_it}");
            let remedy = format!(
                "run as root, or add {capability} to CapabilityBoundingSet= and AmbientCapabilities= of the service"
            );
            if Capability::REQUIRED.contains(&capability) {
                probe.missing(detail, remedy)
            } else {
                probe.degraded(detail, remedy)
            }
        })
        .collect()
}

const fn use_of(capability: Capability) -> &'static str {
    match capability {
        Capability::Bpf => "loads the programs and makes their maps",
        Capability::NetAdmin => "attaches the programs, and ends waiters at their queue timeout",
        Capability::NetRaw => "sends a held connect again the moment it is admitted",
        Capability::SysAdmin => "enters the network namespaces of containers",
        Capability::SysPtrace => {
            "finds the network namespaces of other users' processes, which wake late without it"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Verdict;

    #[test]
    fn only_what_the_controller_does_not_start_without_is_required() {
        let none = judge(&Capability::RUNNING);
        let verdicts: Vec<_> = none.iter().map(|finding| finding.verdict).collect();
        assert_eq!(
            verdicts,
            [
                Verdict::Missing,
                Verdict::Missing,
                Verdict::Missing,
                Verdict::Missing,
                Verdict::Degraded
            ]
        );
        for finding in none {
            let remedy = finding.remedy.unwrap();
            assert!(remedy.contains(finding.probe.name()), "{remedy}");
        }
        assert!(
            judge(&[])
                .iter()
                .all(|finding| finding.verdict == Verdict::Ok)
        );
    }
}
