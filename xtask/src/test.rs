//! `cargo xtask test`: every test of the workspace, the end-to-end ones as root.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    slice,
};

use anyhow::{Context, Result, bail};

use crate::{
    build_ebpf,
    command::{cargo, privileged, show},
    executables::{self, Executable},
    test_report::Tally,
    vm, workspace,
};

/// The package of the end-to-end tests.
const END_TO_END: &str = "tests";

/// Tells the end-to-end tests where the program is.
pub const BINARY: &str = "SHAPER_BIN";

/// Names a file to which a test that cannot run on this machine appends a line, `name: reason`, before it returns.
pub const SKIPS: &str = "SHAPER_TEST_SKIPS";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run only the tests whose name contains this
    filter: Option<String>,
    /// Run the core of the end-to-end tests, or those with FILTER in their name, on Debian's kernels in virtual machines
    #[arg(long)]
    vm: bool,
    /// Run on this kernel only
    #[arg(long, requires = "vm", value_enum)]
    kernel: Option<vm::Series>,
    /// Show what the tests print
    #[arg(long)]
    nocapture: bool,
    /// Further arguments for the test harness
    #[arg(last = true)]
    harness: Vec<String>,
}

/// Builds everything, runs every suite, prints the sum.
///
/// # Errors
/// A failed build, no way to become root, or a failed test.
pub fn run(args: &Args) -> Result<()> {
    build_ebpf::ensure_current()?;
    // One build of everything: separate ones would unify features differently and compile dependencies twice.
    let mut build = cargo();
    build.current_dir(workspace::root());
    build.args(["build", "--locked", "--workspace", "--bins", "--tests"]);
    let executables = executables::build(&mut build)?;
    if args.vm {
        let kernels = args
            .kernel
            .as_ref()
            .map_or(&vm::Series::ALL[..], slice::from_ref);
        return vm::run(&executables, kernels, args.filter.as_deref());
    }
    let environment = Environment::new(&executables::program(&executables, "shaper")?.path)?;

    let mut sum = Tally::default();
    let (last, first): (Vec<&Executable>, Vec<&Executable>) = executables
        .iter()
        .filter(|executable| executable.is_test)
        .partition(|suite| is_end_to_end(suite));
    for suite in first {
        sum += run_suite(
            &suite.name,
            environment.command(Command::new(&suite.path), &suite.package),
            args,
        )?;
    }
    sum += run_suite("documentation", doc_tests(), args)?;
    for suite in last {
        let as_root = privileged(
            &suite.path,
            &[BINARY, SKIPS, "SHAPER_LOG", "RUST_BACKTRACE", "PATH"],
        )
        .context("the end-to-end tests load kernel programs")?;
        let mut command = environment.command(as_root, &suite.package);
        // They share the machine's cgroups, namespaces and clocks.
        command.arg("--test-threads=1");
        sum += run_suite(&suite.name, command, args)?;
    }

    let skips = environment.skips()?;
    for skip in &skips {
        println!("skipped {skip}");
    }
    sum = sum.with_skipped(skips.len() as u64);
    println!("{sum}");
    if sum.failed > 0 {
        bail!("{} tests failed", sum.failed);
    }
    Ok(())
}

/// Whether a suite needs root, the kernel, and a turn on the machine.
pub fn is_end_to_end(executable: &Executable) -> bool {
    executable.is_test && executable.package == workspace::root().join(END_TO_END)
}

/// What the tests are told.
struct Environment {
    shaper: PathBuf,
    skips: PathBuf,
}

impl Environment {
    fn new(shaper: &Path) -> Result<Self> {
        let skips = shaper.with_file_name("test-skips");
        fs::write(&skips, "").with_context(|| skips.display().to_string())?;
        Ok(Self {
            shaper: shaper.to_owned(),
            skips,
        })
    }

    /// A suite runs where cargo would run it: in the directory of its package.
    fn command(&self, mut command: Command, package: &Path) -> Command {
        command.env(BINARY, &self.shaper).env(SKIPS, &self.skips);
        command
            .env("CARGO_MANIFEST_DIR", package)
            .current_dir(package);
        command
    }

    fn skips(&self) -> Result<Vec<String>> {
        let text =
            fs::read_to_string(&self.skips).with_context(|| self.skips.display().to_string())?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

fn doc_tests() -> Command {
    let mut command = cargo();
    command.current_dir(workspace::root());
    command.args([
        "test",
        "--locked",
        "--workspace",
        "--doc",
        "--no-fail-fast",
        "--",
    ]);
    command
}

/// Runs one suite, showing what it prints.
fn run_suite(name: &str, mut command: Command, args: &Args) -> Result<Tally> {
    command
        .args(&args.filter)
        .args(args.nocapture.then_some("--nocapture"))
        .args(&args.harness);
    show(&command);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start suite {name}"))?;
    let stdout = child
        .stdout
        .take()
        .context("the suite has no standard output")?;
    let mut tally = Tally::default();
    for line in BufReader::new(stdout).split(b'\n') {
        // What a test prints need not be UTF-8.
        let line = line?;
        let mut terminal = std::io::stdout().lock();
        terminal.write_all(&line)?;
        terminal.write_all(b"\n")?;
        tally += Tally::from_result_line(&String::from_utf8_lossy(&line)).unwrap_or_default();
    }
    let status = child.wait()?;
    if !status.success() && tally.failed == 0 {
        println!("suite {name} ended without a result: {status}");
        tally.failed = 1;
    }
    Ok(tally)
}
