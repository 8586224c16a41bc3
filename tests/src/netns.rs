//! Network namespaces made for one scenario: two of them, joined by a veth pair, each with an IPv4 and an IPv6
//! address and its loopback up. Nothing is added to the host's own namespace.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, setns};

/// A named network namespace; gone, with its devices, when dropped.
#[derive(Debug)]
pub struct Netns {
    name: String,
    handle: File,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

/// Two namespaces joined by a veth pair.
#[derive(Debug)]
pub struct VethPair {
    pub client: Netns,
    pub gateway: Netns,
}

impl VethPair {
    pub fn create() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let stem = format!(
            "shaper-test-{}-{}",
            process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let host = |number| {
            (
                Ipv4Addr::new(10, 99, 0, number),
                Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, u16::from(number)),
            )
        };
        let client = Netns::create(format!("{stem}-client"), host(1))?;
        let gateway = Netns::create(format!("{stem}-gateway"), host(2))?;
        // Both ends are born inside their namespaces, so the name cannot clash with a device of the host.
        ip(&format!(
            "-n {} link add veth0 type veth peer name veth0 netns {}",
            client.name, gateway.name
        ))?;
        for end in [&client, &gateway] {
            let Netns { name, v4, v6, .. } = end;
            ip(&format!("-n {name} address add {v4}/24 dev veth0"))?;
            // Without `nodad` the address cannot be bound for the first second or two.
            ip(&format!("-n {name} address add {v6}/64 dev veth0 nodad"))?;
            ip(&format!("-n {name} link set veth0 up"))?;
        }
        let pair = Self { client, gateway };
        pair.wait_for_neighbours()?;
        Ok(pair)
    }

    /// Right after the devices come up, neighbour discovery loses its first packet and tries again a second later; a
    /// scenario that measures connects wants that behind it.
    fn wait_for_neighbours(&self) -> Result<()> {
        const PATIENCE: Duration = Duration::from_secs(5);
        // Nobody listens there, and the refusal comes from the other end.
        const DISCARD: u16 = 9;
        for end in [IpAddr::from(self.gateway.v4), IpAddr::from(self.gateway.v6)] {
            let address = SocketAddr::from((end, DISCARD));
            let called = self
                .client
                .run(|| TcpStream::connect_timeout(&address, PATIENCE))?;
            ensure!(
                called
                    .as_ref()
                    .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused),
                "the veth pair does not carry packets to {end}: {called:?}"
            );
        }
        Ok(())
    }
}

impl Netns {
    fn create(name: String, (v4, v6): (Ipv4Addr, Ipv6Addr)) -> Result<Self> {
        ip(&format!("netns add {name}"))?;
        let path = format!("/run/netns/{name}");
        let opened = File::open(&path)
            .with_context(|| format!("cannot open {path}"))
            .and_then(|handle| {
                ip(&format!("-n {name} link set lo up"))?;
                Ok(handle)
            });
        match opened {
            Ok(handle) => Ok(Self {
                name,
                handle,
                v4,
                v6,
            }),
            Err(error) => {
                let _ = ip(&format!("netns delete {name}"));
                Err(error)
            }
        }
    }

    /// Runs `work` on a thread inside the namespace. A socket it makes stays in there wherever it is used.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    setns(&self.handle, CloneFlags::CLONE_NEWNET)
                        .with_context(|| format!("cannot enter network namespace {}", self.name))?;
                    Ok(work())
                })
                .join()
                .expect("the work in the namespace does not panic")
        })
    }

    /// Sets a kernel parameter of the namespace: `key` is its path below `/proc/sys`.
    pub fn set(&self, key: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/{key}");
        self.run(|| fs::write(&path, value))?
            .with_context(|| format!("cannot write {path} in network namespace {}", self.name))
    }

    /// Makes `command` run inside the namespace.
    pub fn contain(&self, command: &mut Command) -> Result<()> {
        let handle = self
            .handle
            .try_clone()
            .context("cannot share a namespace")?;
        // SAFETY: between fork and exec the closure makes one setns(2) on a descriptor opened before, a plain
        // system call that allocates nothing.
        unsafe {
            command.pre_exec(move || Ok(setns(&handle, CloneFlags::CLONE_NEWNET)?));
        }
        Ok(())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(error) = ip(&format!("netns delete {}", self.name)) {
            eprintln!("network namespace {} is left behind: {error:#}", self.name);
        }
    }
}

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .context("cannot run `ip`: install the package iproute2")?;
    ensure!(
        output.status.success(),
        "`ip {arguments}` failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
