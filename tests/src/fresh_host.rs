//! A host on which shaper has never been, for instructions that are followed to the letter: with the default paths,
//! addresses and ports. It is this machine with everything that they touch put aside: mounts and network are those of
//! namespaces of their own, and the cgroup2 mount shows the stage's cgroups as if they were all.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, thread};

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

use crate::cgroup::{Cgroup, cgroup2_mount};
use crate::stage::{Scale, Stage};
use crate::terminal::{Size, Terminal};
use crate::tools;

/// What may be changed there: seen as it is, written in memory.
const LAYERED: [&str; 3] = ["/etc", "/usr/local", "/var/lib"];

/// What an installation has left there.
const INSTALLED: [&str; 3] = ["/etc/shaper", "/usr/local/bin/shaper", "/var/lib/shaper"];

/// The shells' window: high enough for all that one step says.
const WINDOW: Size = Size::new(60, 120);

#[derive(Debug)]
pub struct FreshHost {
    /// Where the shells begin; it goes, with all its members, with the stage.
    cgroup: Cgroup,
    /// Programs that stand in for those that the machine lacks.
    programs: PathBuf,
}

impl FreshHost {
    /// Does `work` there; everything that it starts is there too, and ends with it.
    pub fn visit<T: Send>(
        stage: &Stage,
        work: impl FnOnce(&Self) -> Result<T> + Send,
    ) -> Result<T> {
        let scratch = TempDir::new().context("cannot make a directory")?;
        thread::scope(|scope| {
            // Namespaces are a thread's own; they go with the last process in them.
            let visit = scope.spawn(|| {
                let host = Self::enter(stage, scratch.path())?;
                work(&host)
            });
            visit
                .join()
                .expect("the work on the fresh host does not panic")
        })
    }

    fn enter(stage: &Stage, scratch: &Path) -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
            .context("cannot make namespaces")?;
        attach(
            None,
            Path::new("/"),
            None,
            MsFlags::MS_REC | MsFlags::MS_PRIVATE,
            "",
        )?;
        attach(None, scratch, Some("tmpfs"), MsFlags::empty(), "")?;
        for directory in LAYERED {
            layer(Path::new(directory), scratch)?;
        }
        for path in INSTALLED {
            match fs::remove_dir_all(path).or_else(|_| fs::remove_file(path)) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    bail!("cannot put {path} aside: {error}")
                }
                _ => {}
            }
        }
        attach(
            None,
            Path::new("/run"),
            Some("tmpfs"),
            MsFlags::empty(),
            "mode=755",
        )?;
        let cgroups = stage.cgroups().path();
        attach(Some(cgroups), &cgroup2_mount()?, None, MsFlags::MS_BIND, "")?;
        loopback_up()?;

        let programs = scratch.join("programs");
        fs::create_dir(&programs)?;
        let host = Self {
            cgroup: Cgroup::existing("outside")?,
            programs,
        };
        // Who follows the instructions as root needs no sudo, and containers have none.
        if !is_program("sudo") {
            host.stand_in("sudo", "exec \"$@\"")?;
        }
        if Scale::asked() == Scale::Brief {
            host.stand_in_for_the_build()?;
        }
        Ok(host)
    }

    /// A shell at the top of the checkout, in no class, as somebody has it who has just logged in.
    pub fn shell(&self) -> Result<Terminal> {
        let mut shell = Command::new("bash");
        shell
            .args(["--noprofile", "--norc", "-i"])
            .current_dir(checkout())
            .env_clear();
        for name in ["HOME", "USER", "CARGO_HOME", "RUSTUP_HOME"] {
            if let Some(value) = env::var_os(name) {
                shell.env(name, value);
            }
        }
        let path = env::var("PATH").context("there is no PATH")?;
        shell
            .env("PATH", format!("{}:{path}", self.programs.display()))
            .env("LANG", "C.UTF-8")
            .env("PS1", "$ ");
        self.cgroup.contain(&mut shell)?;
        Terminal::start(shell, WINDOW)
    }

    /// A build for this package alone takes minutes, and the program has just been built for this test. So `cargo xtask run`
    /// finds it where it would have built it; with `SHAPER_LONG=1` it builds.
    fn stand_in_for_the_build(&self) -> Result<()> {
        let built = tools::shaper()?;
        let program = fs::read(&built).with_context(|| built.display().to_string())?;
        let target = checkout().join("target");
        fs::create_dir_all(&target)?;
        attach(None, &target, Some("tmpfs"), MsFlags::empty(), "")?;
        fs::create_dir(target.join("debug"))?;
        executable(&target.join("debug/shaper"), &program)?;
        self.stand_in(
            "cargo",
            "test \"$*\" = \"xtask run\" || { echo \"cargo $* is not stood in for\"; exit 64; }\n\
             exec target/debug/shaper run",
        )
    }

    fn stand_in(&self, name: &str, script: &str) -> Result<()> {
        let script = format!("#!/bin/sh\n{script}\n");
        executable(&self.programs.join(name), script.as_bytes())
    }
}

/// The top of the workspace.
pub fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this package is a directory of the workspace")
}

fn executable(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn is_program(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// Puts a layer in memory over a directory.
fn layer(directory: &Path, scratch: &Path) -> Result<()> {
    let name = directory.display().to_string().replace('/', "-");
    let (upper, work) = (
        scratch.join(format!("upper{name}")),
        scratch.join(format!("work{name}")),
    );
    fs::create_dir(&upper)?;
    fs::create_dir(&work)?;
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        directory.display(),
        upper.display(),
        work.display()
    );
    attach(None, directory, Some("overlay"), MsFlags::empty(), &options)
}

fn attach(
    source: Option<&Path>,
    target: &Path,
    kind: Option<&str>,
    flags: MsFlags,
    options: &str,
) -> Result<()> {
    mount(source, target, kind, flags, Some(options)).with_context(|| {
        format!(
            "cannot mount {} on {}",
            kind.unwrap_or("a directory"),
            target.display()
        )
    })
}

/// The loopback device of a new namespace is down.
fn loopback_up() -> Result<()> {
    let mut ip = Command::new("ip");
    let status = ip.args(["link", "set", "lo", "up"]).status();
    match status.context("cannot run `ip`: install the package iproute2")? {
        status if status.success() => Ok(()),
        status => bail!("`ip link set lo up` failed: {status}"),
    }
}
