//! Which compiler builds the kernel object.
//!
//! The target has no precompiled `core`, so it takes a compiler with the source of exactly its own library, and a
//! `bpf-linker` built for the LLVM of that compiler. Two of those are looked for:
//!
//! 1. the system's compiler (Debian: `rustc-web` and `rust-web-src`), unlocked for unstable features. It comes first
//!    because it is the one that builds the checked-in object, and because `cargo xtask setup` links `bpf-linker` to
//!    its LLVM where it exists;
//! 2. rustup's nightly with the component `rust-src`.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    command::{cargo, find_program, read},
    workspace::cargo_home,
};

/// The version of `bpf-linker` that `cargo xtask setup` installs.
pub const BPF_LINKER_VERSION: &str = "0.13.0";

const SYSTEM_RUSTC: &str = "/usr/bin/rustc";

/// The `rust-version` of this workspace, whose crate `shaper-common` it compiles.
const OLDEST_MINOR: u32 = 88;

/// A compiler that can build the kernel object.
#[derive(Debug)]
pub struct Toolchain {
    origin: Origin,
    /// The source of its library, `…/lib/rustlib/src/rust`.
    pub library: PathBuf,
    /// Release, commit and LLVM.
    pub compiler: String,
    /// Name and version of the linker.
    pub linker: String,
}

#[derive(Debug, Clone, Copy)]
enum Origin {
    System,
    RustupNightly,
}

impl Toolchain {
    /// Finds a complete toolchain.
    ///
    /// # Errors
    /// There is none; the error says what each candidate lacks and how to install it.
    pub fn find() -> Result<Self> {
        let mut lacking = Vec::new();
        for origin in [Origin::System, Origin::RustupNightly] {
            match Self::probe(origin) {
                Ok(toolchain) => return Ok(toolchain),
                Err(error) => lacking.push(format!("- {error:#}")),
            }
        }
        bail!(
            "nothing here can build the kernel object:\n{}\n\
             `cargo xtask setup` installs what is missing, or says how to",
            lacking.join("\n")
        )
    }

    /// A cargo command that builds with this toolchain. What the environment says about compilers, flags and profiles
    /// does not reach it: the object depends on the sources alone.
    pub fn cargo(&self) -> Result<Command> {
        let mut command = match self.origin {
            Origin::System => {
                let mut command = cargo();
                command
                    .env("RUSTC", SYSTEM_RUSTC)
                    .env("RUSTC_BOOTSTRAP", "1");
                command
            }
            Origin::RustupNightly => {
                let mut command = Command::new("rustup");
                command
                    .args(["run", "nightly", "cargo"])
                    .env_remove("RUSTC");
                command
            }
        };
        for (name, _) in env::vars_os() {
            let leaks = name
                .to_str()
                .is_some_and(|name| name.starts_with("CARGO_PROFILE_"));
            if leaks || name == "RUSTC_WORKSPACE_WRAPPER" || name == "RUSTFLAGS" {
                command.env_remove(name);
            }
        }
        command.env("PATH", path_with_cargo_bin()?);
        Ok(command)
    }

    fn probe(origin: Origin) -> Result<Self> {
        let rustc = || match origin {
            Origin::System => Command::new(SYSTEM_RUSTC),
            Origin::RustupNightly => {
                let mut command = Command::new("rustup");
                command.args(["run", "nightly", "rustc"]);
                command
            }
        };
        let name = match origin {
            Origin::System => format!("the system's compiler ({SYSTEM_RUSTC})"),
            Origin::RustupNightly => "rustup's nightly".to_owned(),
        };
        let version = read(rustc().arg("-vV")).with_context(|| name.clone())?;
        let field = |label: &str| {
            version
                .lines()
                .find_map(|line| line.strip_prefix(label))
                .with_context(|| format!("{name}: `rustc -vV` has no line `{label}`"))
        };
        let release = field("release: ")?;
        if minor(release).is_none_or(|minor| minor < OLDEST_MINOR) {
            bail!("{name} is {release}; 1.{OLDEST_MINOR} or newer is needed");
        }
        let sysroot = read(rustc().args(["--print", "sysroot"])).with_context(|| name.clone())?;
        let library = Path::new(&sysroot).join("lib/rustlib/src/rust");
        require_matching_library(&library, release).with_context(|| name.clone())?;
        let linker = linker_version().with_context(|| name.clone())?;
        let commit = field("commit-hash: ")?;
        let llvm = field("LLVM version: ")?;
        let compiler = format!(
            "rustc {release} ({}), LLVM {llvm}",
            commit.get(..9).unwrap_or(commit)
        );
        Ok(Self {
            origin,
            library,
            compiler,
            linker,
        })
    }
}

/// Debian names the directory behind the link after the release; rustup keeps both in one toolchain, so they match.
fn require_matching_library(library: &Path, release: &str) -> Result<()> {
    if !library.join("library/core/src/lib.rs").is_file() {
        bail!(
            "the source of its library is not installed ({})",
            library.display()
        );
    }
    let real = fs::canonicalize(library)?;
    let of = real
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(|name| name.strip_prefix("rustc-"));
    if let Some(of) = of
        && of != release
    {
        bail!("its release is {release}, but the source of its library is of {of}");
    }
    Ok(())
}

/// Name and version of the installed `bpf-linker`.
///
/// # Errors
/// It is not installed, or does not start.
pub fn linker_version() -> Result<String> {
    read(
        Command::new("bpf-linker")
            .arg("--version")
            .env("PATH", path_with_cargo_bin()?),
    )
    .context("bpf-linker is not installed")
}

/// True when rustup is what installs compilers here.
pub fn has_rustup() -> bool {
    find_program("rustup").is_some()
}

/// `cargo install` puts the linker into a directory that is not always in `PATH`, root's for instance.
fn path_with_cargo_bin() -> Result<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain([cargo_home()?.join("bin")]);
    env::join_paths(directories).context("PATH")
}

fn minor(release: &str) -> Option<u32> {
    release.strip_prefix("1.")?.split('.').next()?.parse().ok()
}
