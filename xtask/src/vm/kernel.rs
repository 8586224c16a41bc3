//! The kernels: Debian's packages, unpacked below `target/vm`, never installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    command::{self, privileged},
    workspace,
};

/// A line of kernels that the scenarios run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Series {
    /// Debian 12's own: the oldest that shaper supports
    #[value(name = "6.1")]
    Linux6_1,
    /// Debian 13's own, which Debian 12 carries too
    #[value(name = "6.12")]
    Linux6_12,
}

/// A kernel that can be booted.
#[derive(Debug)]
pub struct Kernel {
    /// As `uname -r` tells.
    pub release: String,
    pub image: PathBuf,
    /// Its modules are in `lib/modules/RELEASE` below this.
    pub base: PathBuf,
}

impl Series {
    pub const ALL: [Self; 2] = [Self::Linux6_1, Self::Linux6_12];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Linux6_1 => "6.1",
            Self::Linux6_12 => "6.12",
        }
    }

    /// Packages that depend on the newest kernel of this series; which of them does differs between Debian's releases.
    const fn metapackages(self) -> &'static [&'static str] {
        match self {
            Self::Linux6_1 => &["linux-image-cloud-amd64"],
            Self::Linux6_12 => &["linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64"],
        }
    }

    /// Where everything about this kernel is kept.
    pub fn directory(self) -> PathBuf {
        workspace::root().join("target/vm").join(self.name())
    }

    fn unpacked(self) -> PathBuf {
        self.directory().join("package")
    }

    /// The unpacked kernel, downloaded if this has not been done before.
    ///
    /// # Errors
    /// As [`Series::download`], or the package does not have what a kernel needs.
    pub fn kernel(self) -> Result<Kernel> {
        if !self.unpacked().is_dir() {
            update_package_lists()?;
            self.download()?;
        }
        Kernel::in_package(&self.unpacked())
    }

    /// Downloads and unpacks the newest kernel that the package lists of this machine know.
    ///
    /// # Errors
    /// The machine's package sources do not have it, or the download fails.
    pub fn download(self) -> Result<()> {
        let package = self.newest_package()?;
        let marker = self.directory().join("package.name");
        if self.unpacked().is_dir() && fs::read_to_string(&marker).is_ok_and(|name| name == package)
        {
            return Ok(());
        }
        let download = self.directory().join("download");
        empty_directory(&download)?;
        command::run(
            Command::new("apt-get")
                .args(["--quiet", "download", &package])
                .current_dir(&download),
        )?;
        let archive = fs::read_dir(&download)?
            .next()
            .with_context(|| format!("apt-get has left no package in {}", download.display()))??
            .path();
        let unpacked = download.join("package");
        command::run(
            Command::new("dpkg-deb")
                .arg("--extract")
                .args([&archive, &unpacked]),
        )?;
        let kernel = Kernel::in_package(&unpacked)?;
        // The package's installation would do this.
        command::run(
            Command::new("busybox")
                .args(["depmod", "-b"])
                .arg(&kernel.base)
                .arg(&kernel.release),
        )?;
        if self.unpacked().exists() {
            fs::remove_dir_all(self.unpacked())?;
        }
        fs::rename(&unpacked, self.unpacked()).context("cannot keep the unpacked kernel")?;
        fs::write(&marker, package)?;
        fs::remove_dir_all(&download)?;
        Ok(())
    }

    fn newest_package(self) -> Result<String> {
        let wanted = format!("linux-image-{}.", self.name());
        for metapackage in self.metapackages() {
            let depends = command::read(Command::new("apt-cache").args(["depends", metapackage]));
            let package = depends
                .iter()
                .flat_map(|text| text.lines())
                .find_map(|line| {
                    let package = line.trim().strip_prefix("Depends: ")?;
                    package.starts_with(&wanted).then(|| package.to_owned())
                });
            if let Some(package) = package {
                return Ok(package);
            }
        }
        bail!(
            "this machine's package sources have no kernel {} (looked at {}): this takes Debian 12 with its security updates",
            self.name(),
            self.metapackages().join(", ")
        )
    }
}

impl Kernel {
    fn in_package(package: &Path) -> Result<Self> {
        let boot = package.join("boot");
        let image = fs::read_dir(&boot)
            .with_context(|| boot.display().to_string())?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .find(|name| name.starts_with("vmlinuz-"))
            .with_context(|| format!("no kernel image in {}", boot.display()))?;
        let release = image.trim_start_matches("vmlinuz-").to_owned();
        // Since Debian 13 modules lie below /usr.
        let base = [package.to_owned(), package.join("usr")]
            .into_iter()
            .find(|base| base.join("lib/modules").join(&release).is_dir())
            .with_context(|| format!("no modules of {release} in {}", package.display()))?;
        Ok(Self {
            image: boot.join(image),
            release,
            base,
        })
    }

    pub fn modules(&self) -> PathBuf {
        self.base.join("lib/modules").join(&self.release)
    }
}

/// What the package sources have now.
///
/// # Errors
/// `apt-get update` fails.
pub fn update_package_lists() -> Result<()> {
    command::run(privileged("apt-get", &[])?.args(["--quiet", "update"]))
}

pub fn empty_directory(path: &Path) -> Result<()> {
    if path.exists() {
        fs::remove_dir_all(path).with_context(|| path.display().to_string())?;
    }
    fs::create_dir_all(path).with_context(|| path.display().to_string())
}
