//! The controller's work on a few connections: hold, admit, refuse, end.

use std::{
    fs, io,
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use nix::errno::Errno;
use shaper_common::Family;

use super::{
    cgroup::ScratchCgroup,
    client::{Client, Outcome},
    lane::{Queue, ScratchLane},
    netns::Ground,
    report::{Finding, Probe, Report},
};
use crate::{format, kernel::ConnView};

/// A hold counts when TCP has tried again in vain: the first time after 1 s (RFC 6298).
const TRIES: u32 = 2;
/// In which a held connect must have been tried so often, and an admitted one must complete at the latest. TCP's own
/// third try comes between 2 and 3 s after the first.
const PATIENCE: Duration = Duration::from_secs(4);
/// In which something must happen that waits for nobody but this machine.
const PROMPT: Duration = Duration::from_secs(1);
/// A connect that completes sooner after its admission did not wait for TCP's own next try, which is at least a second
/// after the one before.
const AT_ONCE: Duration = Duration::from_millis(500);

const NOT_HELD: &str = "no connect is held";
const ELSEWHERE: &str = "another firewall or BPF program may stand in between: `bpftool cgroup tree`, `nft list ruleset`";

/// What is tried on connections, all of it untried.
pub fn untried(ground: Option<&Ground>, why: &str) -> Vec<Finding> {
    let made = ground.and_then(Ground::netns);
    made.map(|_| Probe::Namespace)
        .into_iter()
        .chain([
            Probe::Hold(Family::V4),
            Probe::Events,
            Probe::Replay(Family::V4),
            Probe::SynRetries,
            Probe::Release,
            Probe::Hold(Family::V6),
            Probe::Replay(Family::V6),
            Probe::Refuse,
            Probe::Destroy,
        ])
        .map(|probe| probe.untried(why))
        .collect()
}

/// An attached lane and where its clients come from.
pub struct Scene<'a> {
    cgroup: &'a ScratchCgroup,
    ground: &'a Ground,
    lane: ScratchLane,
}

/// A client whose connect is held.
struct Held {
    client: Client,
    waiter: ConnView,
}

impl<'a> Scene<'a> {
    pub fn new(cgroup: &'a ScratchCgroup, ground: &'a Ground, lane: ScratchLane) -> Self {
        Self {
            cgroup,
            ground,
            lane,
        }
    }

    /// Tries everything, as far as one thing does not stand on another that failed.
    pub fn play(mut self, report: &mut Report) {
        self.hold_and_admit_v4(report);
        self.hold_and_admit_v6(report);
        report.add(self.refuse());
        report.add(self.destroy());
    }

    fn hold_and_admit_v4(&mut self, report: &mut Report) {
        let (finding, held) = self.hold_for_a_while(Family::V4);
        report.add(finding);
        let Some(held) = held else {
            report.extend(
                [
                    Probe::Events,
                    Probe::Replay(Family::V4),
                    Probe::SynRetries,
                    Probe::Release,
                ]
                .map(|probe| probe.untried(NOT_HELD)),
            );
            return;
        };
        report.add(self.events());
        report.extend(self.enter_namespace(&held.waiter));
        let (finding, outcome) = self.admit(Family::V4, &held);
        report.add(finding);
        match outcome {
            Some(Outcome::Connected { syn_retries }) => {
                report.add(kept_trying(syn_retries, default_syn_retries()));
                report.add(self.release(held.client));
            }
            _ => report.extend(
                [Probe::SynRetries, Probe::Release]
                    .map(|probe| probe.untried("no connect completed")),
            ),
        }
    }

    /// The rest does not depend on the family.
    fn hold_and_admit_v6(&mut self, report: &mut Report) {
        if self.ground.listener(Family::V6).is_none() {
            report.extend(
                [Probe::Hold(Family::V6), Probe::Replay(Family::V6)]
                    .map(|probe| probe.untried("IPv6 is disabled here")),
            );
            return;
        }
        let (finding, held) = self.hold_for_a_while(Family::V6);
        report.add(finding);
        report.add(match held {
            Some(held) => self.admit(Family::V6, &held).0,
            None => Probe::Replay(Family::V6).untried(NOT_HELD),
        });
    }

    fn hold_for_a_while(&self, family: Family) -> (Finding, Option<Held>) {
        let probe = Probe::Hold(family);
        let begin = Instant::now();
        match self.hold(family, TRIES) {
            Ok(held) => {
                let finding = probe.ok(format!(
                    "a connect waited {}, {} SYNs were dropped",
                    format::duration(begin.elapsed()),
                    held.waiter.record.held_packets
                ));
                (finding, Some(held))
            }
            Err(failure) => (probe.missing(failure, ELSEWHERE), None),
        }
    }

    /// Starts a client and waits until its SYN was dropped `tries` times.
    fn hold(&self, family: Family, tries: u32) -> Result<Held, String> {
        let client = self.client(family)?;
        let waiter = wait(PATIENCE, || {
            let enough = |waiter: &ConnView| waiter.record.held_packets >= tries;
            self.lane.waiter().filter(enough)
        });
        let listener = self.ground.listener(family);
        if listener.is_some_and(|listener| listener.accept().is_ok()) {
            return Err("the connect went through although no slot was free".to_owned());
        }
        match (waiter, client.outcome(Duration::ZERO)) {
            (Some(waiter), None) => Ok(Held { client, waiter }),
            (_, Some(outcome)) => Err(format!("the connect did not wait: {outcome}")),
            (None, None) => Err(match self.lane.waiter() {
                Some(waiter) => format!(
                    "in {} TCP tried only {} times",
                    format::duration(PATIENCE),
                    waiter.record.held_packets
                ),
                None => "the connect program did not see the connect".to_owned(),
            }),
        }
    }

    fn client(&self, family: Family) -> Result<Client, String> {
        let failed = |error: io::Error| format!("the client cannot be started: {error}");
        let to = self
            .ground
            .listener(family)
            .ok_or(io::ErrorKind::AddrNotAvailable)
            .map_err(io::Error::from)
            .and_then(|listener| listener.local_addr())
            .map_err(failed)?;
        Client::start(self.cgroup, self.ground, to).map_err(failed)
    }

    fn events(&mut self) -> Finding {
        let told = wait(PROMPT, || {
            self.lane.has_told_of_a_held_connect().then_some(())
        });
        match told {
            Some(()) => Probe::Events.ok("the ring buffer told of the held connect"),
            None => Probe::Events.missing(
                "the ring buffer did not tell of the held connect",
                "a kernel with BPF ring buffers: Linux 5.8 or newer",
            ),
        }
    }

    /// Nothing if the clients share the namespace of the examination.
    fn enter_namespace(&mut self, waiter: &ConnView) -> Option<Finding> {
        self.ground.netns()?;
        Some(match self.lane.enter_namespace(waiter) {
            Ok(()) => Probe::Namespace.ok("made, entered, raw sockets opened in it"),
            Err(error) => Probe::Namespace.degraded(
                format!("cannot enter that of a client: {error}; clients in containers wake late"),
                match error.kind() {
                    // The programs know processes by their ids in the initial namespace.
                    io::ErrorKind::NotFound | io::ErrorKind::InvalidData => {
                        "run shaper in the host's pid namespace (--pid=host for a container)"
                    }
                    _ => "run as root, or with CAP_NET_RAW, CAP_SYS_ADMIN and CAP_SYS_PTRACE",
                },
            ),
        })
    }

    fn admit(&mut self, family: Family, held: &Held) -> (Finding, Option<Outcome>) {
        let admitted = Instant::now();
        if !self.lane.admit(&held.waiter) {
            let gone = "the connect gave up before it was admitted";
            return (Probe::Replay(family).missing(gone, ELSEWHERE), None);
        }
        let sent = self.lane.replay(&held.waiter);
        let outcome = held.client.outcome(PATIENCE);
        let finding = replayed(family, sent, outcome, admitted.elapsed());
        // Takes it out of the listener's queue, where the next hold must find nothing.
        let _ = self.ground.listener(family).map(TcpListener::accept);
        (finding, outcome)
    }

    fn release(&self, mut client: Client) -> Finding {
        client.leave();
        match wait(PROMPT, || self.lane.is_idle().then_some(())) {
            Some(()) => Probe::Release.ok("the slot came back when the client closed"),
            None => Probe::Release.missing(
                "the client has closed, and its slot did not come back",
                "a kernel whose sock_ops programs see state changes: Linux 6.1 or newer",
            ),
        }
    }

    fn refuse(&self) -> Finding {
        self.lane.set_queue(Queue::Full);
        let outcome = self
            .client(Family::V4)
            .map(|client| client.outcome(PATIENCE));
        self.lane.set_queue(Queue::Open);
        match outcome {
            Err(failure) => Probe::Refuse.untried(&failure),
            Ok(Some(Outcome::Failed { errno })) if errno == Errno::ECONNREFUSED as i32 => {
                Probe::Refuse.ok("a connect over the bound failed with ECONNREFUSED")
            }
            Ok(outcome) => Probe::Refuse.missing(
                format!("a connect over the bound {}", ending(outcome)),
                "a kernel with bpf_set_retval in connect programs: Linux 6.1 or newer",
            ),
        }
    }

    fn destroy(&mut self) -> Finding {
        let held = match self.hold(Family::V4, 1) {
            Ok(held) => held,
            Err(failure) => return Probe::Destroy.untried(&failure),
        };
        if let Err(error) = self.lane.enter_namespace(&held.waiter) {
            return Probe::Destroy
                .untried(&format!("cannot enter the client's namespace: {error}"));
        }
        let remedy =
            "a kernel built with CONFIG_INET_DIAG_DESTROY=y, and its module: modprobe tcp_diag";
        let cost = "a waiter stays held over its queue timeout until its client gives up";
        if let Err(error) = self.lane.destroy(&held.waiter) {
            return Probe::Destroy.degraded(format!("{error}: {cost}"), remedy);
        }
        match held.client.outcome(PROMPT) {
            Some(Outcome::Failed { errno }) if errno == Errno::ECONNABORTED as i32 => {
                Probe::Destroy.ok("a held connect ended with ECONNABORTED")
            }
            outcome => Probe::Destroy.degraded(
                format!(
                    "a held connect was to be ended and {}: {cost}",
                    ending(outcome)
                ),
                remedy,
            ),
        }
    }
}

fn replayed(
    family: Family,
    sent: io::Result<()>,
    outcome: Option<Outcome>,
    after: Duration,
) -> Finding {
    let probe = Probe::Replay(family);
    let Some(Outcome::Connected { .. }) = outcome else {
        return probe.missing(
            format!("an admitted connect {}", ending(outcome)),
            ELSEWHERE,
        );
    };
    let took = format!("{:.1} ms", after.as_secs_f64() * 1000.0);
    match sent {
        Ok(()) if after < AT_ONCE => probe.ok(format!("an admitted connect completed in {took}")),
        Ok(()) => probe.degraded(
            format!("an admitted connect took {took}: its SYN was sent again and did not arrive"),
            ELSEWHERE,
        ),
        Err(error) => probe.degraded(
            format!("an admitted connect took {took}, until TCP tried again by itself: {error}"),
            "see `namespace` and CAP_NET_RAW above",
        ),
    }
}

/// `default` is the host's setting. A TCP that keeps to it ends a connect after about two minutes.
fn kept_trying(syn_retries: u32, default: Option<u32>) -> Finding {
    if default.is_some_and(|default| syn_retries > default) {
        return Probe::SynRetries.ok(format!("raised to {syn_retries} on held connects"));
    }
    Probe::SynRetries.degraded(
        format!("TCP gives up a held connect after {syn_retries} tries: it waits some minutes at most"),
        "sysctl net.ipv4.tcp_syn_retries=127, or a kernel on which sock_ops programs may set TCP_SYNCNT",
    )
}

fn default_syn_retries() -> Option<u32> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_syn_retries").ok()?;
    text.trim().parse().ok()
}

/// How a connect ended, as the end of a sentence.
fn ending(outcome: Option<Outcome>) -> String {
    outcome.map_or_else(|| "had no end".to_owned(), |outcome| outcome.to_string())
}

/// Looks until there is something or `patience` is over.
fn wait<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    const PAUSE: Duration = Duration::from_millis(2);
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Verdict;

    const CONNECTED: Option<Outcome> = Some(Outcome::Connected { syn_retries: 127 });

    #[test]
    fn only_a_replay_that_arrives_at_once_is_ok() {
        let refused = || Err(io::Error::from_raw_os_error(libc::EPERM));
        let soon = Duration::from_millis(1);
        let late = Duration::from_millis(1_200);
        for (sent, outcome, after, verdict) in [
            (Ok(()), CONNECTED, soon, Verdict::Ok),
            (Ok(()), CONNECTED, late, Verdict::Degraded),
            (refused(), CONNECTED, late, Verdict::Degraded),
            // TCP's own try came at the same moment: luck.
            (refused(), CONNECTED, soon, Verdict::Degraded),
            (Ok(()), None, late, Verdict::Missing),
            (
                Ok(()),
                Some(Outcome::Failed { errno: 110 }),
                late,
                Verdict::Missing,
            ),
        ] {
            let finding = replayed(Family::V4, sent, outcome, after);
            assert_eq!(finding.verdict, verdict, "{finding:?}");
        }
    }

    #[test]
    fn retries_at_the_hosts_default_were_not_raised() {
        assert_eq!(kept_trying(127, Some(6)).verdict, Verdict::Ok);
        assert_eq!(kept_trying(6, Some(6)).verdict, Verdict::Degraded);
        assert_eq!(kept_trying(6, None).verdict, Verdict::Degraded);
    }

    #[test]
    fn a_look_that_finds_nothing_ends() {
        let mut looks = 0;
        let found: Option<()> = wait(Duration::ZERO, || {
            looks += 1;
            None
        });
        assert_eq!((found, looks), (None, 1));
    }
}
