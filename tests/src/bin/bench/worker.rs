//! Clients: processes of their own, so that they can live in a cgroup and a network namespace.

mod chain;
mod tcp;

use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    net::TcpStream,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, anyhow};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::{prctl, signal::Signal},
    unistd::Pid,
};
use shaper_tests::{cgroup::Cgroup, netns::Netns, open_files};
use std::os::unix::process::CommandExt;

use crate::order::{Answer, Order};

/// A client that waits for orders; killed when dropped.
pub struct Worker {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    pub fn start(cgroup: &Cgroup, netns: &Netns) -> Result<Self> {
        let itself = env::current_exe().context("cannot find the benchmarks' own program")?;
        let mut command = Command::new(itself);
        command
            .arg("worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        cgroup.contain(&mut command)?;
        netns.contain(&mut command)?;
        die_with_parent(&mut command);
        let mut child = command.spawn().context("cannot start a client")?;
        Ok(Self {
            orders: child.stdin.take().expect("stdin is piped"),
            answers: BufReader::new(child.stdout.take().expect("stdout is piped")),
            child,
        })
    }

    /// Has `order` carried out.
    ///
    /// # Errors
    /// What the client could not do, or that it is gone.
    pub fn ask(&mut self, order: &Order) -> Result<Vec<u64>> {
        let gone = || format!("the client is gone: {order:?}");
        let line = serde_json::to_string(order).expect("orders are JSON");
        writeln!(self.orders, "{line}").with_context(gone)?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).with_context(gone)?;
        let answer: Answer = serde_json::from_str(&answer).with_context(gone)?;
        answer.map_err(|error| anyhow!("{order:?}: {error}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only if it is gone already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has the kernel kill the command's process when the one that started it is gone, however that ended.
pub fn die_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one prctl(2).
    unsafe { command.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?)) };
}

/// The client's side: carries orders out until there are no more.
pub fn serve() -> Result<()> {
    open_files::raise()?;
    stay_on_last_cpu()?;
    let mut waiting = Vec::new();
    for line in io::stdin().lines() {
        let order = serde_json::from_str(&line?).context("unknown order")?;
        let answer: Answer = carry_out(order, &mut waiting).map_err(|error| format!("{error:#}"));
        println!("{}", serde_json::to_string(&answer)?);
    }
    Ok(())
}

/// A client that wanders between CPUs would measure that.
fn stay_on_last_cpu() -> Result<()> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut last = CpuSet::new();
    last.set(cpus - 1)?;
    sched_setaffinity(Pid::from_raw(0), &last).context("cannot stay on one CPU")
}

fn carry_out(order: Order, waiting: &mut Vec<TcpStream>) -> Result<Vec<u64>> {
    match order {
        Order::Connect { to, count } => tcp::connect(to, count),
        Order::Call { to, count } => tcp::call(to, count),
        Order::Pairs { to, count } => tcp::pairs(to, count),
        Order::Download { to, bytes } => tcp::download(to, bytes),
        Order::Upload { to, bytes } => tcp::upload(to, bytes),
        Order::Hold { to } => {
            let mut connection = tcp::open(to)?;
            tcp::send_request(&mut connection)?;
            waiting.push(connection);
            Ok(Vec::new())
        }
        Order::Wait { to, count } => {
            for number in 0..count {
                waiting.push(tcp::begin_connect(to[number % to.len()])?);
            }
            Ok(Vec::new())
        }
        Order::HandOverConnects {
            to,
            waiters,
            handovers,
        } => chain::connects(to, waiters, handovers),
        Order::HandOverRequests {
            to,
            waiters,
            handovers,
        } => chain::requests(to, waiters, handovers),
    }
}
