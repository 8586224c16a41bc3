//! A stub name server, and processes that ask it: their `resolv.conf` is one of their own, in a mount namespace of their
//! own.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

use crate::netns::Netns;

/// RFC 1035, 4.2.1; resolvers ask no other port.
const PORT: u16 = 53;
const TYPE_A: u16 = 1;
const TYPE_CNAME: u16 = 5;
const TYPE_AAAA: u16 = 28;
const CLASS_IN: u16 = 1;

/// A running name server; it stops when dropped.
#[derive(Debug)]
pub struct NameServer {
    zone: Arc<Mutex<Zone>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// With the `resolv.conf` of those who ask.
    directory: TempDir,
}

/// By name.
type Zone = HashMap<String, Entry>;

#[derive(Debug)]
struct Entry {
    aliases: Vec<String>,
    v4: Vec<Ipv4Addr>,
    v6: Vec<std::net::Ipv6Addr>,
    asked: usize,
}

impl NameServer {
    /// At an address of the loopback.
    pub fn start(address: Ipv4Addr) -> Result<Self> {
        Self::serve(address, UdpSocket::bind((address, PORT)))
    }

    /// At an address of the loopback of a network namespace.
    pub fn start_in(netns: &Netns, address: Ipv4Addr) -> Result<Self> {
        Self::serve(address, netns.run(|| UdpSocket::bind((address, PORT)))?)
    }

    fn serve(address: Ipv4Addr, socket: io::Result<UdpSocket>) -> Result<Self> {
        const LOOK_UP: Duration = Duration::from_millis(50);
        let at = SocketAddr::from((address, PORT));
        let socket = socket.with_context(|| format!("cannot serve names at {at}"))?;
        socket.set_read_timeout(Some(LOOK_UP))?;
        let directory = tempfile::tempdir().context("cannot make a directory")?;
        let resolv_conf = format!("nameserver {address}\noptions timeout:2 attempts:2\n");
        fs::write(directory.path().join("resolv.conf"), resolv_conf)?;
        let (zone, stop) = (Arc::<Mutex<Zone>>::default(), Arc::<AtomicBool>::default());
        let thread = {
            let (zone, stop) = (Arc::clone(&zone), Arc::clone(&stop));
            thread::spawn(move || {
                let mut query = [0; 512];
                while !stop.load(Ordering::Relaxed) {
                    let Ok((length, from)) = socket.recv_from(&mut query) else {
                        continue;
                    };
                    let mut zone = zone.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(answer) = answer(&query[..length], &mut zone) {
                        // Who does not listen any more misses nothing.
                        let _ = socket.send_to(&answer, from);
                    }
                }
            })
        };
        Ok(Self {
            zone,
            stop,
            thread: Some(thread),
            directory,
        })
    }

    /// From now on `name` is an alias of the first of `aliases`, and so on, and the last one has these addresses. Each
    /// question for an IPv4 address is answered with the next one.
    pub fn set(&self, name: &str, aliases: &[&str], addresses: &[IpAddr]) {
        let entry = Entry {
            aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
            v4: addresses
                .iter()
                .filter_map(|a| match a {
                    IpAddr::V4(v4) => Some(*v4),
                    IpAddr::V6(_) => None,
                })
                .collect(),
            v6: addresses
                .iter()
                .filter_map(|a| match a {
                    IpAddr::V6(v6) => Some(*v6),
                    IpAddr::V4(_) => None,
                })
                .collect(),
            asked: 0,
        };
        let mut zone = self.zone.lock().unwrap_or_else(PoisonError::into_inner);
        zone.insert(name.to_owned(), entry);
    }

    /// Makes `command` ask this server and no other.
    pub fn contain(&self, command: &mut Command) {
        let file: PathBuf = self.directory.path().join("resolv.conf");
        let none: Option<&str> = None;
        // SAFETY: between fork and exec the closure makes plain system calls. nix turns the paths into C strings on
        // the stack (they are shorter than its 1024 bytes), so nothing is allocated.
        unsafe {
            command.pre_exec(move || {
                unshare(CloneFlags::CLONE_NEWNS)?;
                mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
                let conf = Path::new("/etc/resolv.conf");
                mount(Some(&file), conf, none, MsFlags::MS_BIND, none)?;
                Ok(())
            });
        }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            eprintln!("a name server's thread panicked");
        }
    }
}

/// The answer to a query for addresses; `None` if it is not one.
fn answer(query: &[u8], zone: &mut Zone) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    let mut labels = Vec::new();
    let mut at = HEADER;
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(str::from_utf8(query.get(at..at + length)?).ok()?);
        at += length;
    }
    let name = labels.join(".").to_ascii_lowercase();
    let kind = u16::from_be_bytes(query.get(at..at + 2)?.try_into().ok()?);
    let question = query.get(HEADER..at + 4)?;

    let mut records = Vec::new();
    let mut count = 0_u16;
    let mut record = |owner: &[u8], kind: u16, data: &[u8]| {
        records.extend_from_slice(owner);
        records.extend(kind.to_be_bytes());
        records.extend(CLASS_IN.to_be_bytes());
        // A time to live of a second.
        records.extend(1_u32.to_be_bytes());
        records.extend((data.len() as u16).to_be_bytes());
        records.extend_from_slice(data);
        count += 1;
    };
    if let Some(entry) = zone.get_mut(&name) {
        // The question's name is at the header's end.
        let mut owner = (0xc000 | HEADER as u16).to_be_bytes().to_vec();
        for alias in &entry.aliases {
            let target = wire(alias);
            record(&owner, TYPE_CNAME, &target);
            owner = target;
        }
        match kind {
            TYPE_A if !entry.v4.is_empty() => {
                let next = entry.v4[entry.asked % entry.v4.len()];
                entry.asked += 1;
                record(&owner, TYPE_A, &next.octets());
            }
            TYPE_AAAA => {
                for address in &entry.v6 {
                    record(&owner, TYPE_AAAA, &address.octets());
                }
            }
            _ => {}
        }
    }
    let mut answer = query.get(..2)?.to_vec();
    // A response without error, recursion desired and available; one question.
    answer.extend([0x81, 0x80, 0, 1]);
    answer.extend(count.to_be_bytes());
    answer.extend([0; 4]);
    answer.extend_from_slice(question);
    answer.extend(records);
    Some(answer)
}

fn wire(name: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    for label in name.split('.') {
        wire.push(label.len() as u8);
        wire.extend(label.bytes());
    }
    wire.push(0);
    wire
}
