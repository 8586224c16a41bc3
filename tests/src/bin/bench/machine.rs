//! The machine that the figures are of.

use std::{fs, process::Command, thread};

use nix::sys::utsname::uname;
use serde::{Deserialize, Serialize};

/// A line of facts for each, as far as they can be found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub facts: Vec<(String, String)>,
}

impl Machine {
    pub fn describe() -> Self {
        let facts = [
            ("processor", processor()),
            ("memory", memory()),
            ("kernel", kernel()),
            ("load at the start", load()),
            ("peers", peers()),
        ];
        Self {
            facts: facts
                .into_iter()
                .filter_map(|(name, fact)| Some((name.to_owned(), fact?)))
                .collect(),
        }
    }

    /// As a Markdown list.
    pub fn list(&self) -> String {
        let lines = self.facts.iter();
        lines
            .map(|(name, fact)| format!("- {name}: {fact}\n"))
            .collect()
    }
}

fn processor() -> Option<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").ok()?;
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim())
    };
    let cores = thread::available_parallelism().ok()?;
    let guest =
        field("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"));
    let kind = if guest { ", of a virtual machine" } else { "" };
    Some(format!("{}, {cores} CPUs{kind}", field("model name")?))
}

fn memory() -> Option<String> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let total: u64 = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?
        .trim()
        .strip_suffix(" kB")?
        .parse()
        .ok()?;
    Some(format!("{} MiB", total / 1024))
}

fn kernel() -> Option<String> {
    let name = uname().ok()?;
    let part = |part: &std::ffi::OsStr| part.to_string_lossy().into_owned();
    Some(format!(
        "{} {} {}",
        part(name.sysname()),
        part(name.release()),
        part(name.machine())
    ))
}

/// Over the last minute. Above a tenth or so, other work shares the CPUs with the benchmarks.
fn load() -> Option<String> {
    let loadavg = fs::read_to_string("/proc/loadavg").ok()?;
    Some(loadavg.split(' ').next()?.to_owned())
}

fn peers() -> Option<String> {
    let versions = [
        ("haproxy", "-v"),
        ("iptables", "--version"),
        ("python3", "--version"),
    ];
    let found: Vec<String> = versions
        .iter()
        .filter_map(|(program, option)| {
            let output = Command::new(program).arg(option).output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            Some(text.lines().next()?.split(" 20").next()?.trim().to_owned())
        })
        .collect();
    Some(found.join(", ")).filter(|versions| !versions.is_empty())
}
