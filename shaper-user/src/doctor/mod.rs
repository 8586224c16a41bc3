//! What this host allows: everything that shaper needs, tried where it can be tried.
//!
//! The programs are loaded, attached to a cgroup made for this, and held against clients in a network namespace made
//! for this. Their maps are shared with no controller, and nothing stays: dropping the values takes it all away.

mod cgroup;
mod client;
mod deeds;
mod host;
mod interrupt;
mod lane;
mod netns;
mod privileges;
mod report;

use shaper_common::Family;

use self::{
    cgroup::ScratchCgroup, deeds::Scene, interrupt::Uninterrupted, lane::ScratchLane, netns::Ground,
};
pub use self::{
    client::{SUBCOMMAND as CLIENT_SUBCOMMAND, connect_and_tell},
    report::{Finding, Group, Probe, Report, Verdict},
};
use crate::kernel::{CgroupRoot, KernelError, last_words};

/// Looks at everything. Takes a few seconds, as held connects must outlast TCP's own retry.
pub fn examine() -> Report {
    // Whoever interrupts this waits those seconds, and nothing is left behind.
    let _uninterrupted = Uninterrupted::begin();
    let mut report = Report::default();
    report.extend(host::examine());
    let (root, finding) = cgroup::find();
    report.add(finding);
    report.extend(privileges::examine());
    let cgroup = root
        .as_ref()
        .and_then(|root| make_cgroup(root, &mut report));
    let ground = make_ground(&mut report);
    let lane = load(&mut report);
    match (root, cgroup, ground, lane) {
        (Some(root), Some(cgroup), Some(ground), Some(lane)) => {
            attach(&root, &cgroup, &ground, lane, &mut report);
        }
        (_, _, ground, _) => {
            report.add(Probe::Attach.untried(NOT_PREPARED));
            report.extend(deeds::untried(ground.as_ref(), NOT_PREPARED));
        }
    }
    report
}

const NOT_PREPARED: &str = "needs what is missing above";
const NOT_ATTACHED: &str = "nothing is attached";

fn make_cgroup(root: &CgroupRoot, report: &mut Report) -> Option<ScratchCgroup> {
    match ScratchCgroup::create(root) {
        Ok(cgroup) => {
            report.add(Probe::Cgroup.ok("made below the mount"));
            Some(cgroup)
        }
        Err(error) => {
            report.add(Probe::Cgroup.missing(
                format!("cannot make one in {}: {error}", root.path().display()),
                "run as root, where cgroup2 is mounted for writing",
            ));
            None
        }
    }
}

/// In the host's own namespace where there can be no other.
fn make_ground(report: &mut Report) -> Option<Ground> {
    let refused = match Ground::in_new_namespace() {
        // Whether it can be entered shows with the first client.
        Ok(ground) => return Some(ground),
        Err(error) => error,
    };
    report.add(Probe::Namespace.degraded(
        format!("cannot make one: {refused}"),
        "run as root on a kernel with CONFIG_NET_NS=y; without it, clients in containers wake late",
    ));
    match Ground::in_own_namespace() {
        Ok(ground) => Some(ground),
        Err(error) => {
            report.add(Probe::Hold(Family::V4).missing(
                format!("nothing can listen on loopback: {error}"),
                "ip link set lo up",
            ));
            None
        }
    }
}

fn load(report: &mut Report) -> Option<ScratchLane> {
    let trials = match lane::try_each() {
        Ok(trials) => trials,
        // Said above, for each of the capabilities.
        Err(KernelError::NotPermitted { .. }) => {
            report.add(Probe::Maps.untried(NOT_PREPARED));
            return None;
        }
        Err(error) => {
            report.add(Probe::Maps.missing(error.to_string(), NEWER_KERNEL));
            return None;
        }
    };
    let all_load = trials.iter().all(|trial| trial.result.is_ok());
    let lane = all_load.then(ScratchLane::load).transpose();
    report.add(match &lane {
        Ok(_) => Probe::Maps.ok("made and mapped"),
        Err(error) => Probe::Maps.missing(error.to_string(), NEWER_KERNEL),
    });
    for trial in trials {
        let probe = Probe::Program(trial.program);
        let finding = match trial.result {
            Ok(()) => probe.ok("the verifier accepts it"),
            Err(KernelError::Load { program, cause }) => {
                report
                    .verifier_logs
                    .push(format!("{program}:\n{}\n", cause.trim_end()));
                probe.missing(last_words(&cause), REFUSED)
            }
            Err(error) => probe.missing(error.to_string(), NEWER_KERNEL),
        };
        report.add(finding);
    }
    lane.ok().flatten()
}

const REFUSED: &str =
    "boot Linux 6.1 or newer; if it is, `shaper doctor --verifier-log FILE` keeps what to report";

const NEWER_KERNEL: &str =
    "boot Linux 6.1 or newer, built with CONFIG_BPF_SYSCALL=y and CONFIG_CGROUP_BPF=y";

fn attach(
    root: &CgroupRoot,
    cgroup: &ScratchCgroup,
    ground: &Ground,
    mut lane: ScratchLane,
    report: &mut Report,
) {
    match lane.govern(root, cgroup.path(), ground.endpoints()) {
        Ok(()) => {
            report.add(Probe::Attach.ok("with links, beside what others have attached"));
            Scene::new(cgroup, ground, lane).play(report);
        }
        Err(error) => {
            report.add(Probe::Attach.missing(
                error.to_string(),
                "a kernel built with CONFIG_CGROUP_BPF=y; `bpftool cgroup tree` shows who forbids others",
            ));
            report.extend(deeds::untried(Some(ground), NOT_ATTACHED));
        }
    }
}
