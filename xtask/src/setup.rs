//! `cargo xtask setup`: what building the kernel object and running the tests need.

use std::{collections::HashMap, fs, process::Command};

use anyhow::{Context, Result, bail};

use crate::{
    command::{self, cargo, find_program, privileged},
    docs::MDBOOK,
    package, promtool, test_clients,
    toolchain::{BPF_LINKER_VERSION, Toolchain, has_rustup, linker_version},
    vm,
};

/// Debian 12 carries a current compiler for its browsers; the kernel object is built with that one. The compiler's LLVM
/// is the one `bpf-linker` must be built for.
const DEBIAN_COMPILER: &[&str] = &[
    "build-essential",
    "libpolly-22-dev",
    "llvm-22-dev",
    "rust-web-src",
    "rustc-web",
];
const DEBIAN_LLVM: (&str, &str) = ("/usr/lib/llvm-22", "llvm-22");

/// The clients and tools that the end-to-end tests start.
const DEBIAN_TESTS: &[&str] = &[
    "bpftool",
    "chromium",
    "curl",
    "dbus",
    "golang-go",
    "iproute2",
    "nodejs",
    "openssl",
    "python3",
    "python3-venv",
    "systemd",
];
const TEST_PROGRAMS: &[&str] = &[
    "bpftool",
    "busctl",
    "chromium",
    "curl",
    "dbus-daemon",
    "go",
    "ip",
    "node",
    "npm",
    "openssl",
    "python3",
];

/// What the package is tried with.
const DEBIAN_PACKAGE: &[&str] = &["dpkg-dev", "fish", "man-db", "mandoc", "zsh"];
const PACKAGE_PROGRAMS: &[&str] = &[
    "dpkg-shlibdeps",
    "fish",
    "man",
    "mandoc",
    "systemd-analyze",
    "zsh",
];

/// The peers that the benchmarks measure besides.
const DEBIAN_BENCH: &[&str] = &["haproxy", "iptables"];
const BENCH_PROGRAMS: &[&str] = &["haproxy", "iptables"];

/// What `cargo xtask test --vm` starts.
const DEBIAN_VM: &[&str] = &["busybox-static", "qemu-system-x86"];
const VM_PROGRAMS: &[&str] = &["busybox", "qemu-system-x86_64"];

/// Node's own packages bring `npm` along and refuse to live beside Debian's.
const DEBIAN_NPM: &str = "npm";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also what `cargo xtask bench` compares shaper with: HAProxy and netfilter queues
    #[arg(long)]
    bench: bool,
    /// Also what `cargo xtask test --vm` needs: QEMU, and Debian's kernels below target/vm
    #[arg(long)]
    vm: bool,
    /// Also mdBook, with which `cargo xtask docs` builds the book; compiling it takes some minutes
    #[arg(long)]
    book: bool,
}

/// Installs what is missing on Debian 12; says what to install elsewhere.
///
/// # Errors
/// An installation fails, or something is missing and cannot be installed from here.
pub fn run(args: &Args) -> Result<()> {
    let (mut packages, mut programs) = (
        [DEBIAN_COMPILER, DEBIAN_TESTS, DEBIAN_PACKAGE].concat(),
        [TEST_PROGRAMS, PACKAGE_PROGRAMS].concat(),
    );
    if args.bench {
        packages.extend(DEBIAN_BENCH);
        programs.extend(BENCH_PROGRAMS);
    }
    if args.vm {
        packages.extend(DEBIAN_VM);
        programs.extend(VM_PROGRAMS);
    }
    if is_debian_12()? {
        install_packages(&packages)?;
        install_linker()?;
    }
    let toolchain = Toolchain::find();
    let absent: Vec<&str> = programs
        .into_iter()
        .filter(|name| find_program(name).is_none())
        .collect();
    match toolchain {
        Ok(toolchain) if absent.is_empty() => {
            test_clients::install()?;
            promtool::install()?;
            package::install_builder()?;
            if args.book {
                install_mdbook()?;
            }
            if args.vm {
                vm::setup()?;
            }
            eprintln!("ready: {}, {}", toolchain.compiler, toolchain.linker);
            Ok(())
        }
        Ok(_) => bail!("these programs are needed too: {}", absent.join(", ")),
        Err(error) => {
            let rustup = if has_rustup() {
                ""
            } else {
                "  install rustup (https://rustup.rs)\n"
            };
            bail!(
                "{error}\n\nOn this system, install them by hand:\n{rustup}  \
                 rustup toolchain install nightly --component rust-src\n  \
                 cargo install bpf-linker --version {BPF_LINKER_VERSION}\n\
                 The linker must be built for the LLVM of that nightly (`rustc +nightly -vV`); \
                 see its README for how to choose one."
            )
        }
    }
}

fn install_packages(wanted: &[&'static str]) -> Result<()> {
    let mut missing: Vec<&str> = wanted
        .iter()
        .copied()
        .filter(|package| !is_installed(package))
        .collect();
    if find_program("npm").is_none() {
        missing.push(DEBIAN_NPM);
    }
    if missing.is_empty() {
        return Ok(());
    }
    let apt_get = || {
        let mut command = privileged("env", &[])?;
        command.args([
            "DEBIAN_FRONTEND=noninteractive",
            "apt-get",
            "--quiet",
            "--yes",
        ]);
        anyhow::Ok(command)
    };
    command::run(apt_get()?.arg("update"))?;
    command::run(
        apt_get()?
            .args(["install", "--no-install-recommends"])
            .args(missing),
    )
}

fn is_installed(package: &str) -> bool {
    command::read(Command::new("dpkg-query").args([
        "--show",
        "--showformat=${db:Status-Status}",
        package,
    ]))
    .is_ok_and(|status| status == "installed")
}

fn install_linker() -> Result<()> {
    if linker_version().is_ok_and(|version| version == format!("bpf-linker {BPF_LINKER_VERSION}")) {
        return Ok(());
    }
    let (prefix, feature) = DEBIAN_LLVM;
    let mut install = cargo();
    install.args([
        "install",
        "bpf-linker",
        "--locked",
        "--version",
        BPF_LINKER_VERSION,
    ]);
    install.args(["--no-default-features", "--features", feature]);
    command::run(install.env("LLVM_PREFIX", prefix))
}

fn install_mdbook() -> Result<()> {
    /// The version for which `book.toml` is written.
    const VERSION: &str = "0.5.4";
    if find_program(MDBOOK).is_some() {
        return Ok(());
    }
    // Search is part of the book; watching and serving it are for those who write it.
    let mut install = cargo();
    install.args(["install", MDBOOK, "--locked", "--version", VERSION]);
    command::run(install.args(["--no-default-features", "--features", "search"]))
}

fn is_debian_12() -> Result<bool> {
    let text = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let fields: HashMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    let is = |key: &str, value: &str| {
        fields
            .get(key)
            .is_some_and(|found| found.trim_matches('"') == value)
    };
    Ok(is("ID", "debian") && is("VERSION_ID", "12"))
}
