//! What was looked at, and what was found.

use serde::{Serialize, Serializer};
use shaper_common::Family;

use crate::kernel::Capability;

/// One thing that shaper needs of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Kernel,
    Btf,
    Jit,
    Memlock,
    BpfFs,
    Cgroup2,
    Capability(Capability),
    /// A cgroup can be made.
    Cgroup,
    /// A network namespace can be made, entered, and raw sockets opened in it.
    Namespace,
    /// The maps of the kernel object can be made.
    Maps,
    /// The program of this name loads.
    Program(&'static str),
    /// All programs can be attached to a cgroup.
    Attach,
    /// A connect can be held.
    Hold(Family),
    /// The kernel's news of a held connect arrives.
    Events,
    /// An admitted connect completes at once.
    Replay(Family),
    /// A held connect is not given up by TCP.
    SynRetries,
    /// A closed connection gives its slot back.
    Release,
    /// A connect over the queue's bound is refused.
    Refuse,
    /// A held connect can be ended.
    Destroy,
}

/// The part of the report that a probe belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    Host,
    Privileges,
    Programs,
    Deeds,
}

impl Group {
    /// All groups in the order of the report.
    pub const ALL: [Self; 4] = [Self::Host, Self::Privileges, Self::Programs, Self::Deeds];

    pub const fn title(self) -> &'static str {
        match self {
            Self::Host => "this host",
            Self::Privileges => "this process",
            Self::Programs => "the kernel programs",
            Self::Deeds => "tried on connections of its own",
        }
    }
}

impl Probe {
    /// The name in the report and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Btf => "btf",
            Self::Jit => "jit",
            Self::Memlock => "memlock",
            Self::BpfFs => "bpffs",
            Self::Cgroup2 => "cgroup2",
            Self::Capability(capability) => capability.name(),
            Self::Cgroup => "cgroup",
            Self::Namespace => "namespace",
            Self::Maps => "maps",
            Self::Program(name) => name,
            Self::Attach => "attach",
            Self::Hold(Family::V4) => "hold_ipv4",
            Self::Hold(Family::V6) => "hold_ipv6",
            Self::Events => "events",
            Self::Replay(Family::V4) => "replay_ipv4",
            Self::Replay(Family::V6) => "replay_ipv6",
            Self::SynRetries => "syn_retries",
            Self::Release => "release",
            Self::Refuse => "refuse",
            Self::Destroy => "destroy",
        }
    }

    pub const fn group(self) -> Group {
        match self {
            Self::Kernel | Self::Btf | Self::Jit | Self::Memlock | Self::BpfFs | Self::Cgroup2 => {
                Group::Host
            }
            Self::Capability(_) | Self::Cgroup | Self::Namespace => Group::Privileges,
            Self::Maps | Self::Program(_) | Self::Attach => Group::Programs,
            Self::Hold(_)
            | Self::Events
            | Self::Replay(_)
            | Self::SynRetries
            | Self::Release
            | Self::Refuse
            | Self::Destroy => Group::Deeds,
        }
    }

    /// What the probe shows once it can be tried.
    const fn question(self) -> &'static str {
        match self {
            Self::Kernel => "whether the kernel is new enough",
            Self::Btf => "whether the kernel describes its types",
            Self::Jit => "whether programs run as machine code",
            Self::Memlock => "whether the maps fit into the limit on locked memory",
            Self::BpfFs => "whether there is a place for pinned maps",
            Self::Cgroup2 => "whether processes can be told apart by their cgroup",
            Self::Capability(_) => "whether this process may do what it has to",
            Self::Cgroup => "whether class cgroups can be made",
            Self::Namespace => "whether clients in containers can be reached",
            Self::Maps => "whether the kernel knows all kinds of maps that are used",
            Self::Program(_) => "whether the verifier accepts the program",
            Self::Attach => "whether programs can be attached to a cgroup beside others",
            Self::Hold(_) => "whether a connect waits without blocking anything else",
            Self::Events => "whether the ring buffer delivers",
            Self::Replay(_) => "whether an admitted connect completes at once",
            Self::SynRetries => "whether TCP itself gives up a held connect",
            Self::Release => "whether a closed connection gives its slot back",
            Self::Refuse => "whether a full queue refuses with ECONNREFUSED",
            Self::Destroy => "whether a queue timeout can end a waiter",
        }
    }

    pub fn ok(self, detail: impl Into<String>) -> Finding {
        self.found(Verdict::Ok, detail.into(), None)
    }

    /// Works with a loss that `detail` names.
    pub fn degraded(self, detail: impl Into<String>, remedy: impl Into<String>) -> Finding {
        self.found(Verdict::Degraded, detail.into(), Some(remedy.into()))
    }

    /// Shaper cannot work without it.
    pub fn missing(self, detail: impl Into<String>, remedy: impl Into<String>) -> Finding {
        self.found(Verdict::Missing, detail.into(), Some(remedy.into()))
    }

    /// Could not be tried, and `why`.
    pub fn untried(self, why: &str) -> Finding {
        let detail = format!("{why}; would show {}", self.question());
        self.found(Verdict::Untried, detail, None)
    }

    fn found(self, verdict: Verdict, detail: String, remedy: Option<String>) -> Finding {
        Finding {
            probe: self,
            group: self.group(),
            verdict,
            detail,
            remedy,
        }
    }
}

impl Serialize for Probe {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// How a probe ended, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Ok,
    /// Something that it stands on is missing.
    Untried,
    /// Shaper works, but worse.
    Degraded,
    /// Shaper does not work.
    Missing,
}

impl Verdict {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Untried => "untried",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
        }
    }
}

/// What a probe has shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub probe: Probe,
    pub group: Group,
    pub verdict: Verdict,
    /// What was seen, and what it costs where it costs something.
    pub detail: String,
    /// How to mend it.
    pub remedy: Option<String>,
}

/// All findings of one examination, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// What the verifier had to say of each program that it refused.
    pub verifier_logs: Vec<String>,
}

impl Report {
    /// The worst of all findings.
    pub fn verdict(&self) -> Verdict {
        self.findings
            .iter()
            .map(|finding| finding.verdict)
            .max()
            .unwrap_or(Verdict::Ok)
    }

    /// The findings of a group.
    pub fn of(&self, group: Group) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(move |finding| finding.group == group)
    }

    pub fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    pub fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings);
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Document<'a> {
            version: &'static str,
            verdict: Verdict,
            probes: &'a [Finding],
        }
        Document {
            version: env!("CARGO_PKG_VERSION"),
            verdict: self.verdict(),
            probes: &self.findings,
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_is_the_verdict() {
        let mut report = Report::default();
        assert_eq!(report.verdict(), Verdict::Ok);
        for (finding, verdict) in [
            (Probe::Kernel.ok("6.18"), Verdict::Ok),
            (Probe::Hold(Family::V6).untried("no IPv6"), Verdict::Untried),
            (Probe::Jit.degraded("off", "turn it on"), Verdict::Degraded),
            (Probe::Cgroup2.missing("none", "mount"), Verdict::Missing),
            (Probe::Btf.ok("there"), Verdict::Missing),
        ] {
            report.add(finding);
            assert_eq!(report.verdict(), verdict);
        }
    }

    #[test]
    fn a_finding_in_json_has_all_that_a_script_needs() {
        let mut report = Report::default();
        report.add(Probe::Program("shaper_egress").missing("refused", "a newer kernel"));
        report.add(Probe::Capability(Capability::Bpf).ok("effective"));
        assert_eq!(
            serde_json::to_value(&report).unwrap(),
            serde_json::json!({
                "version": env!("CARGO_PKG_VERSION"),
                "verdict": "missing",
                "probes": [
                    {
                        "probe": "shaper_egress",
                        "group": "programs",
                        "verdict": "missing",
                        "detail": "refused",
                        "remedy": "a newer kernel",
                    },
                    {
                        "probe": "CAP_BPF",
                        "group": "privileges",
                        "verdict": "ok",
                        "detail": "effective",
                        "remedy": null,
                    },
                ],
            })
        );
    }

    #[test]
    fn what_was_not_tried_says_what_it_would_show() {
        let finding = Probe::Destroy.untried("nothing is attached");
        assert_eq!(
            finding.detail,
            "nothing is attached; would show whether a queue timeout can end a waiter"
        );
        assert_eq!(finding.remedy, None);
    }
}
