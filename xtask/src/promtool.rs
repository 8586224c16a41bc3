//! Prometheus's own tool, which checks the alert rules in `deploy/`.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{command, command::find_program, workspace};

const NAME: &str = "promtool";

/// Where the package has it.
const PACKAGED: &str = "./usr/bin/promtool";

/// Unpacks it from Debian's package, if it is not installed. The package itself would start a server.
///
/// # Errors
/// The package cannot be fetched, or this is no Debian.
pub fn install() -> Result<()> {
    let directory = workspace::root().join("target/test-clients").join(NAME);
    let program = directory.join(NAME);
    if find_program(NAME).is_some() || works(&program) {
        return Ok(());
    }
    if find_program("dpkg-deb").is_none() {
        bail!("the tests need {NAME}, a part of Prometheus: install it");
    }
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let mut download = Command::new("apt-get");
    download.args(["--quiet", "download", "prometheus"]);
    command::run(download.current_dir(&directory))?;
    for entry in fs::read_dir(&directory)? {
        let package = entry?.path();
        if package.extension().is_some_and(|kind| kind == "deb") {
            unpack(&package, &program)?;
            fs::remove_file(&package).with_context(|| package.display().to_string())?;
        }
    }
    ensure!(works(&program), "{} does not run", program.display());
    Ok(())
}

fn works(program: &Path) -> bool {
    command::read(Command::new(program).arg("--version")).is_ok()
}

fn unpack(package: &Path, program: &Path) -> Result<()> {
    let files = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .output()
        .context("cannot start dpkg-deb")?;
    ensure!(
        files.status.success(),
        "{} cannot be read",
        package.display()
    );
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--to-stdout", PACKAGED]);
    let mut tar = tar
        .stdin(Stdio::piped())
        .stdout(fs::File::create(program).with_context(|| program.display().to_string())?)
        .spawn()
        .context("cannot start tar")?;
    tar.stdin
        .take()
        .context("tar has no standard input")?
        .write_all(&files.stdout)?;
    ensure!(tar.wait()?.success(), "{PACKAGED} cannot be unpacked");
    let mut executable = Command::new("chmod");
    command::run(executable.arg("755").arg(program))
}
