//! A netfilter queue whose program accepts every SYN: the least that a limiter in userspace costs.

use std::{env, process::Command, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use nfq::{Queue, Verdict};
use shaper_tests::{clock::poll_until, netns::Netns, process::Process};

use crate::worker::die_with_parent;

const QUEUE: u16 = 0;

/// The program and the rule that leads SYNs to it; the program is killed when this is dropped, the rule goes with the
/// namespace.
pub struct Nfqueue {
    _program: Process,
}

impl Nfqueue {
    /// Has every SYN that leaves the namespace for `port` judged.
    ///
    /// # Errors
    /// `iptables` is not installed, or the kernel has no netfilter queues.
    pub fn start(netns: &Netns, port: u16) -> Result<Self> {
        let itself = env::current_exe().context("cannot find the benchmarks' own program")?;
        let mut command = Command::new(itself);
        command.arg("verdicts").arg(QUEUE.to_string());
        netns.contain(&mut command)?;
        die_with_parent(&mut command);
        let mut program = Process::spawn("the verdict program", &mut command)?;
        // A packet for a queue that nobody reads is dropped, so the rule comes last.
        const PATIENCE: Duration = Duration::from_secs(5);
        let ready = poll_until(PATIENCE, || match program.ended() {
            Ok(None) => program.said().contains(READY).then_some(true),
            _ => Some(false),
        });
        if ready != Some(true) {
            bail!(
                "the verdict program does not start; it said:\n{}",
                program.said()
            );
        }
        // nftables' own `queue` statement is a kernel option of its own, and rarer.
        let mut iptables = Command::new("iptables");
        iptables.args([
            "-I",
            "OUTPUT",
            "-p",
            "tcp",
            "--syn",
            "--dport",
            &port.to_string(),
        ]);
        iptables.args(["-j", "NFQUEUE", "--queue-num", &QUEUE.to_string()]);
        netns.contain(&mut iptables)?;
        let output = iptables.output().context(
            "a netfilter queue is one of the columns: `cargo xtask setup --bench` installs `iptables`",
        )?;
        ensure!(
            output.status.success(),
            "iptables cannot lead packets to a queue; it said: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(Self { _program: program })
    }
}

/// Said by the program when it reads its queue.
const READY: &str = "ready";

/// The program: accepts what comes, for ever.
///
/// # Errors
/// The queue cannot be bound: no privileges, or another program reads it.
pub fn accept_all(queue: u16) -> Result<()> {
    let mut packets = Queue::open().context("cannot open a netfilter queue")?;
    packets
        .bind(queue)
        .with_context(|| format!("cannot read netfilter queue {queue}"))?;
    println!("{READY}");
    loop {
        let mut packet = packets.recv().context("netfilter queue")?;
        packet.set_verdict(Verdict::Accept);
        packets.verdict(packet).context("netfilter queue")?;
    }
}
