//! `cargo xtask test --vm`: the end-to-end scenarios on other kernels than this machine's, each in a virtual machine that
//! boots Debian's kernel on this machine's files.

mod core;
mod guest;
mod kernel;
mod machine;
mod report;

use std::{
    fs::File,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

pub use self::kernel::Series;
use self::{
    guest::Suite,
    kernel::{Kernel, update_package_lists},
    machine::{Accelerator, Machine, Said, require},
    report::{Progress, Report},
};
use crate::{
    executables::{Executable, program},
    test_report::Tally,
};

/// How long a machine lives. The core takes a fraction of it, unless emulation has to share the host's processors.
const PATIENCE: Duration = Duration::from_secs(1800);

/// How long a kernel may take to come up on KVM: where virtual machines are nested, some cannot run a kernel that was not
/// made for them, and stop without a word. Elsewhere it takes two seconds.
const SIGN_OF_LIFE: Duration = Duration::from_secs(20);

/// Runs the core of the end-to-end suite on every one of `kernels`, or all end-to-end tests that `filter` is part of.
///
/// # Errors
/// A machine cannot be started, or a test failed.
pub fn run(executables: &[Executable], kernels: &[Series], filter: Option<&str>) -> Result<()> {
    require()?;
    let kernels = kernels
        .iter()
        .map(|series| Ok((*series, series.kernel()?)))
        .collect::<Result<Vec<(Series, Kernel)>>>()?;
    let shaper = program(executables, "shaper")?;
    let suites = match filter {
        Some(filter) => core::matching(executables, filter),
        None => core::suites(executables)?,
    };

    // Side by side: emulation of one processor each.
    let reports = thread::scope(|scope| {
        let runs: Vec<_> = kernels
            .iter()
            .map(|(series, kernel)| {
                let suites = &suites;
                scope.spawn(move || run_on(*series, kernel, &shaper.path, suites))
            })
            .collect();
        runs.into_iter()
            .map(|run| run.join().expect("a machine's thread does not panic"))
            .collect::<Result<Vec<Report>>>()
    })?;

    let mut sum = Tally::default();
    for report in &reports {
        for skip in &report.skips {
            println!("skipped on Linux {}: {skip}", report.release);
        }
        println!("{report}");
        sum += report.tally;
    }
    println!("{sum}");
    if sum.failed > 0 {
        bail!("{} tests failed", sum.failed);
    }
    Ok(())
}

/// Downloads the newest of all kernels.
///
/// # Errors
/// As [`Series::download`].
pub fn setup() -> Result<()> {
    update_package_lists()?;
    Series::ALL.into_iter().try_for_each(Series::download)
}

fn run_on(series: Series, kernel: &Kernel, shaper: &Path, suites: &[Suite]) -> Result<Report> {
    let directory = series.directory();
    let script = guest::scenarios(kernel, shaper, suites, PATIENCE)?;
    let initramfs = guest::initramfs(kernel, &script, &directory)?;
    let boot = |accelerator| Machine::boot(kernel, accelerator, &initramfs, &directory, PATIENCE);
    if can_open_kvm() {
        let machine = boot(Accelerator::Kvm)?;
        if let Said::Line(first) = machine.next_line(SIGN_OF_LIFE) {
            return Ok(follow(
                &machine,
                series,
                Accelerator::Kvm,
                suites,
                first,
                &directory,
            ));
        }
        println!(
            "{:<5}| KVM does not bring Linux {} up here within {SIGN_OF_LIFE:?}: going on with software emulation",
            series.name(),
            kernel.release
        );
    }
    let accelerator = Accelerator::Emulation;
    let machine = boot(accelerator)?;
    match machine.next_line(PATIENCE) {
        Said::Line(first) => Ok(follow(
            &machine,
            series,
            accelerator,
            suites,
            first,
            &directory,
        )),
        Said::End | Said::Nothing => bail!(
            "Linux {} does not come up: see {}",
            kernel.release,
            directory.join("console.log").display()
        ),
    }
}

fn can_open_kvm() -> bool {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_ok()
}

/// Reads and shows what the machine says until it ends.
fn follow(
    machine: &Machine,
    series: Series,
    accelerator: Accelerator,
    suites: &[Suite],
    first: String,
    directory: &Path,
) -> Report {
    let started = Instant::now();
    let mut progress = Progress::new(accelerator, suites);
    let mut next = Said::Line(first);
    while let Said::Line(line) = next {
        if let Some(shown) = progress.take(&line) {
            println!("{:<5}| {shown}", series.name());
        }
        next = machine.next_line(PATIENCE);
    }
    progress.finish(started.elapsed(), directory)
}
