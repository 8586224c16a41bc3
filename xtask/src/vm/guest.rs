//! What runs inside the machine: the initial RAM disk with its script, and the scenarios to run.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::kernel::{Kernel, empty_directory};
use crate::{
    command::find_program,
    test::{BINARY, SKIPS},
};

const INIT: &str = include_str!("init.sh");
const PREPARE: &str = include_str!("prepare.sh");
const FINISH: &str = include_str!("finish.sh");

/// What the kernel needs before it sees the host's files.
const EARLY_MODULES: [&str; 3] = ["virtio_pci", "virtiofs", "overlay"];

/// One test executable and its arguments.
#[derive(Debug)]
pub struct Suite {
    pub name: String,
    pub program: PathBuf,
    /// Where it runs.
    pub directory: PathBuf,
    pub arguments: Vec<String>,
    /// How many tests it has to run at least.
    pub expected: u64,
}

/// The script that runs `suites` in the machine, and ends the machine after `patience` whatever happens.
pub fn scenarios(
    kernel: &Kernel,
    shaper: &Path,
    suites: &[Suite],
    patience: Duration,
) -> Result<String> {
    let mut script = String::new();
    let modules = quoted(&kernel.base.join("lib/modules"))?;
    // Writing to a String does not fail.
    let _ = writeln!(script, "modules={modules}");
    let _ = writeln!(script, "patience={}", patience.as_secs());
    let _ = writeln!(script, "export {BINARY}={}", quoted(shaper)?);
    let _ = writeln!(script, "export {SKIPS}=/tmp/skips");
    script += PREPARE;
    for suite in suites {
        let _ = write!(
            script,
            "suite {} {} {}",
            suite.name,
            quoted(&suite.directory)?,
            quoted(&suite.program)?
        );
        for argument in &suite.arguments {
            let _ = write!(script, " {}", quoted(Path::new(argument))?);
        }
        script.push('\n');
    }
    script += FINISH;
    Ok(script)
}

/// As one word for a shell.
fn quoted(path: &Path) -> Result<String> {
    let text = path
        .to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}

/// Packs the initial RAM disk and gives its path.
pub fn initramfs(kernel: &Kernel, scenarios: &str, directory: &Path) -> Result<PathBuf> {
    let root = directory.join("initramfs");
    empty_directory(&root)?;
    for name in ["bin", "dev", "host", "memory", "proc", "root", "sys"] {
        fs::create_dir(root.join(name))?;
    }
    let busybox = find_program("busybox").context("busybox is missing")?;
    fs::copy(&busybox, root.join("bin/busybox")).context("cannot copy busybox")?;
    symlink("busybox", root.join("bin/sh"))?;
    fs::write(root.join("init"), INIT)?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
    fs::write(root.join("scenarios.sh"), scenarios)?;
    copy_modules(kernel, &root)?;

    let archive = directory.join("initramfs.cpio");
    // The kernel takes this format (Documentation/driver-api/early-userspace/buffer-format.rst).
    let packed = Command::new("sh")
        .arg("-c")
        .arg("find . | busybox cpio -o -H newc >\"$0\"")
        .arg(&archive)
        .current_dir(&root)
        .output()
        .context("cannot start sh")?;
    ensure!(
        packed.status.success(),
        "cannot pack {}: {}",
        archive.display(),
        String::from_utf8_lossy(&packed.stderr).trim()
    );
    Ok(archive)
}

fn copy_modules(kernel: &Kernel, root: &Path) -> Result<()> {
    let from = kernel.modules();
    let to = root.join("lib/modules").join(&kernel.release);
    fs::create_dir_all(&to)?;
    let dependencies = fs::read_to_string(from.join("modules.dep"))
        .with_context(|| format!("modules.dep of {}", kernel.release))?;
    for file in needed(&dependencies) {
        let target = to.join(file);
        fs::create_dir_all(target.parent().context("modules have a directory")?)?;
        fs::copy(from.join(file), target).with_context(|| file.to_owned())?;
    }
    for list in ["modules.dep", "modules.alias", "modules.symbols"] {
        fs::copy(from.join(list), to.join(list)).with_context(|| list.to_owned())?;
    }
    Ok(())
}

/// The files of the early modules and of what they depend on, in a text of the form `FILE: FILE FILE...`.
/// A module that is built into the kernel has no file.
fn needed(dependencies: &str) -> BTreeSet<&str> {
    let mut needed = BTreeSet::new();
    let mut more: Vec<&str> = dependencies
        .lines()
        .filter_map(|line| line.split(':').next())
        .filter(|file| EARLY_MODULES.contains(&module_name(file)))
        .collect();
    while let Some(file) = more.pop() {
        if needed.insert(file) {
            let line = dependencies
                .lines()
                .find_map(|line| line.strip_prefix(file)?.strip_prefix(':'));
            more.extend(line.unwrap_or_default().split_whitespace());
        }
    }
    needed
}

/// `virtio_pci` of `kernel/drivers/virtio/virtio_pci.ko.xz`.
fn module_name(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split('.').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_brings_what_it_depends_on() {
        let dependencies = "kernel/fs/fuse/virtiofs.ko: kernel/fs/fuse/fuse.ko kernel/drivers/virtio/virtio.ko\n\
                            kernel/fs/fuse/fuse.ko:\n\
                            kernel/drivers/net/veth.ko:\n\
                            kernel/drivers/virtio/virtio.ko: kernel/lib/ring.ko\n\
                            kernel/lib/ring.ko:\n";
        let files = [
            "kernel/drivers/virtio/virtio.ko",
            "kernel/fs/fuse/fuse.ko",
            "kernel/fs/fuse/virtiofs.ko",
            "kernel/lib/ring.ko",
        ];
        assert_eq!(needed(dependencies), BTreeSet::from(files));
    }

    #[test]
    fn compressed_modules_have_the_same_name() {
        assert_eq!(module_name("kernel/fs/overlayfs/overlay.ko.xz"), "overlay");
    }

    #[test]
    fn a_path_is_one_word() {
        assert_eq!(
            quoted(Path::new("/it's here")).expect("text"),
            r"'/it'\''s here'"
        );
    }
}
