//! `cargo xtask package`: the Debian package, and whether it does what it should.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    build_ebpf,
    command::{self, cargo, find_program, privileged},
    executables, workspace,
};

/// What `shaper-user/Cargo.toml` names as the sources of the package, relative to the workspace.
const STAGE: &str = "target/package";

/// The tool that `cargo deb` is.
const BUILDER: &str = "cargo-deb";
const BUILDER_VERSION: &str = "3.8.0";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Build it from the tests' programs, which is quicker, install it into a copy of this system, try it, and remove it
    #[arg(long)]
    check: bool,
}

/// Builds the package below `target/package`.
///
/// # Errors
/// A failed build, no `cargo-deb`, or a package that is not as it should be.
pub fn run(args: &Args) -> Result<()> {
    build_ebpf::ensure_current()?;
    ensure!(
        find_program(BUILDER).is_some(),
        "{BUILDER} is missing: `cargo xtask setup` installs it"
    );
    let stage = workspace::root().join(STAGE);
    if stage.exists() {
        fs::remove_dir_all(&stage).with_context(|| stage.display().to_string())?;
    }
    fs::create_dir_all(&stage).with_context(|| stage.display().to_string())?;
    fill(&stage, args.check)?;

    let package = stage.join("shaper.deb");
    let mut deb = cargo();
    deb.current_dir(workspace::root());
    deb.args(["deb", "--package", "shaper-user", "--locked"]);
    // What it packs is built and stripped already.
    deb.args(["--no-build", "--no-strip"]);
    if args.check {
        deb.arg("--fast");
    }
    command::run(deb.arg("--output").arg(&package))?;
    if args.check {
        check(&package)?;
    }
    println!("{}", package.display());
    Ok(())
}

/// Installs the tool.
///
/// # Errors
/// The installation fails.
pub fn install_builder() -> Result<()> {
    let is_there = command::read(Command::new(BUILDER).arg("--version"))
        .is_ok_and(|version| version.contains(BUILDER_VERSION));
    if is_there {
        return Ok(());
    }
    let mut install = cargo();
    install.args(["install", BUILDER, "--locked", "--version", BUILDER_VERSION]);
    command::run(&mut install)
}

/// Builds what the package is made of: the program, its manual pages and completions.
fn fill(stage: &Path, for_check: bool) -> Result<()> {
    let mut build = cargo();
    build.current_dir(workspace::root());
    build.args(["build", "--locked"]);
    if for_check {
        // As `cargo xtask test` builds them: other selections unify features differently and compile everything again.
        build.args(["--workspace", "--bins", "--tests", "--examples"]);
    } else {
        build.args(["--release", "--package", "shaper-user"]);
        build.args(["--bin", "shaper", "--example", "manual"]);
    }
    let executables = executables::build(&mut build)?;
    let built = |name| executables::program(&executables, name).map(|program| &program.path);
    strip(built("shaper")?, &stage.join("shaper"))?;
    let mut manual = Command::new(built("manual")?);
    command::run(manual.arg(stage.join("manual")).arg(date()?))
}

/// Of the latest commit, so that a package built again is the same; without a repository, today.
fn date() -> Result<String> {
    let mut commit = Command::new("git");
    commit.args(["log", "-1", "--format=%cs"]);
    command::read(commit.current_dir(workspace::root()))
        .or_else(|_| command::read(Command::new("date").arg("+%F")))
}

fn strip(from: &Path, to: &Path) -> Result<()> {
    let mut strip = Command::new("strip");
    command::run(strip.arg("-o").arg(to).arg(from))
}

/// Installs, tries and removes it, where nobody else sees it.
fn check(package: &Path) -> Result<()> {
    let script = workspace::root().join("xtask/src/package/check.sh");
    let copy = package.with_file_name("copy");
    fs::create_dir_all(&copy).with_context(|| copy.display().to_string())?;
    for program in ["bash", "fish", "man", "mandoc", "systemd-analyze", "zsh"] {
        if find_program(program).is_none() {
            bail!(
                "{program} is missing, with which the package is tried: `cargo xtask setup` installs it"
            );
        }
    }
    let mut unshare: Command = privileged("unshare", &["PATH"])?;
    unshare.args(["--mount", "--propagation", "private", "sh"]);
    let paths: [&PathBuf; 2] = [&package.to_owned(), &copy];
    command::run(unshare.arg(script).args(paths))
}
