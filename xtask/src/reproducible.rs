//! Makes the kernel object depend on its sources and the compiler alone, not on the directories of the machine.
//!
//! Directories get in by two ways. Their names are in the debug information, of which the line table for the
//! verifier's log stays in the object: `--remap-path-prefix` replaces them. And cargo hashes the absolute path of
//! every package outside the built workspace (here `shaper-common` and the compiler's library) into
//! `-C metadata`, from which symbol names and the order of functions derive: a compiler wrapper, which is this
//! program under another name, replaces that value by the crate's name.

use std::{
    env,
    ffi::OsString,
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{toolchain::Toolchain, workspace};

/// Set for the compilers that cargo starts through this program.
const WRAPPER: &str = "SHAPER_XTASK_COMPILES";

/// As cargo splits `CARGO_ENCODED_RUSTFLAGS`.
const FLAG_SEPARATOR: &str = "\x1f";

/// Directories of this machine and the names that stand for them in the object.
#[derive(Debug)]
pub struct Remap(Vec<(PathBuf, &'static str)>);

impl Remap {
    /// Looks up the directories that a build with `toolchain` reads. The dependencies must have been fetched: each
    /// registry has its own directory.
    ///
    /// # Errors
    /// A directory that must exist cannot be read.
    pub fn new(toolchain: &Toolchain) -> Result<Self> {
        let mut directories = vec![
            (workspace::root().to_owned(), "/shaper"),
            (toolchain.library.clone(), "/rust"),
        ];
        let registries = workspace::cargo_home()?.join("registry/src");
        for registry in
            fs::read_dir(&registries).with_context(|| registries.display().to_string())?
        {
            directories.push((registry?.path(), "/registry"));
        }
        for index in 0..directories.len() {
            // The compiler sees the working directory without symbolic links.
            let (directory, name) = &directories[index];
            let real =
                fs::canonicalize(directory).with_context(|| directory.display().to_string())?;
            if real != *directory {
                directories.push((real, name));
            }
        }
        Ok(Self(directories))
    }

    /// Verifies that `object` names none of the directories.
    ///
    /// # Errors
    /// It does; the error says which.
    pub fn verify(&self, object: &[u8]) -> Result<()> {
        for (directory, _) in &self.0 {
            let needle = directory.as_os_str().as_encoded_bytes();
            if object.windows(needle.len()).any(|window| window == needle) {
                bail!(
                    "the kernel object names a directory of this machine: {}",
                    directory.display()
                );
            }
        }
        Ok(())
    }

    fn flags(&self) -> impl Iterator<Item = String> {
        self.0
            .iter()
            .map(|(directory, name)| format!("--remap-path-prefix={}={name}", directory.display()))
    }
}

/// Makes `cargo` compile with `flags` and without traces of this machine.
///
/// # Errors
/// The path of this program is unknown.
pub fn configure(cargo: &mut Command, remap: &Remap, flags: &[&str]) -> Result<()> {
    let flags: Vec<String> = flags
        .iter()
        .map(|flag| (*flag).to_owned())
        .chain(remap.flags())
        .collect();
    cargo
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join(FLAG_SEPARATOR))
        .env(
            "RUSTC_WRAPPER",
            env::current_exe().context("path of this program")?,
        )
        .env(WRAPPER, "1");
    Ok(())
}

/// True when cargo has started this program in place of the compiler.
pub fn is_compiler_wrapper() -> bool {
    env::var_os(WRAPPER).is_some()
}

/// Becomes the compiler, whose command line is this program's arguments.
///
/// # Errors
/// The compiler cannot be started.
pub fn compile() -> Result<()> {
    let mut arguments = env::args_os().skip(1);
    let compiler = arguments.next().context("no compiler given")?;
    let package = env::var_os("CARGO_PKG_NAME");
    let arguments = stable_metadata(arguments.collect(), package);
    let error = Command::new(&compiler)
        .args(arguments)
        .env_remove(WRAPPER)
        .exec();
    Err(error).with_context(|| format!("cannot start {}", Path::new(&compiler).display()))
}

/// Replaces the value of `-C metadata` of a crate for the kernel by the name of its package. Should two versions of a
/// package ever be in the object, the compiler refuses them by name. Crates for the host (build scripts, procedural
/// macros) leave no trace in the object and keep their value.
fn stable_metadata(mut arguments: Vec<OsString>, package: Option<OsString>) -> Vec<OsString> {
    let for_kernel = arguments.iter().any(|argument| argument == "--target");
    if let (true, Some(package)) = (for_kernel, package) {
        for argument in &mut arguments {
            if argument.as_encoded_bytes().starts_with(b"metadata=") {
                *argument = OsString::from("metadata=");
                argument.push(&package);
            }
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(arguments: &[&str]) -> Vec<OsString> {
        stable_metadata(
            arguments.iter().map(OsString::from).collect(),
            Some("shaper-common".into()),
        )
    }

    #[test]
    fn a_kernel_crate_is_told_apart_by_its_name() {
        assert_eq!(
            rewritten(&["--target", "bpfel-unknown-none", "-C", "metadata=0123abcd"]),
            [
                "--target",
                "bpfel-unknown-none",
                "-C",
                "metadata=shaper-common"
            ]
        );
    }

    #[test]
    fn a_host_crate_keeps_its_metadata() {
        assert_eq!(
            rewritten(&["-C", "metadata=0123abcd"]),
            ["-C", "metadata=0123abcd"]
        );
    }
}
