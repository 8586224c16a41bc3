//! `cargo xtask build-ebpf`: the kernel object, from source.

use std::{fs, process::Command};

use anyhow::{Context, Result, bail};

use crate::{
    command, executables,
    kernel_object::{MANIFEST, Manifest, OBJECT, digest, source_digest},
    reproducible::{self, Remap},
    strip::strip_dwarf,
    toolchain::Toolchain,
    workspace,
};

const TARGET: &str = "bpfel-unknown-none";

/// - BTF comes from debug information. Its line table carries the source text, which the verifier's log then shows;
///   embedded, because the remapped files cannot be read back, and that takes DWARF 5.
/// - v3 has 32-bit arithmetic and is in every kernel since 5.1.
const RUSTFLAGS: &[&str] = &[
    "-Clinker=bpf-linker",
    "-Clink-arg=--btf",
    "-Cdebuginfo=2",
    "-Cdwarf-version=5",
    "-Zembed-source=yes",
    "-Ctarget-cpu=v3",
];

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Change nothing; fail if the checked-in object is not what the sources give, and on warnings
    #[arg(long)]
    check: bool,
}

/// # Errors
/// No toolchain, a failed build, or with `--check` another object than the checked-in one.
pub fn run(args: &Args) -> Result<()> {
    if args.check { check() } else { refresh() }
}

/// Builds the checked-in object anew unless it is the one its sources give.
///
/// # Errors
/// It is stale and cannot be built.
pub fn ensure_current() -> Result<()> {
    if is_current() {
        return Ok(());
    }
    eprintln!("{OBJECT} is missing or older than its sources: building it");
    refresh()
}

/// Whether the manifest describes both the sources and the object as they are. A missing or unreadable file is a
/// reason to build, so it is no error.
fn is_current() -> bool {
    let root = workspace::root();
    let (Ok(manifest), Ok(object), Ok(sources)) = (
        Manifest::read(root),
        fs::read(root.join(OBJECT)),
        source_digest(root),
    ) else {
        return false;
    };
    manifest.sources == sources && manifest.object == digest(&object)
}

fn refresh() -> Result<()> {
    let (object, manifest) = build(&[])?;
    let root = workspace::root();
    let text = toml::to_string(&manifest)?;
    fs::create_dir_all(
        root.join(OBJECT)
            .parent()
            .context("OBJECT is in a directory")?,
    )?;
    fs::write(root.join(OBJECT), &object).context(OBJECT)?;
    fs::write(
        root.join(MANIFEST),
        format!("# Written by `cargo xtask build-ebpf`.\n{text}"),
    )
    .context(MANIFEST)?;
    eprintln!(
        "{OBJECT}: {} bytes, sha256 {}",
        object.len(),
        manifest.object
    );
    Ok(())
}

fn check() -> Result<()> {
    const REMEDY: &str = "run `cargo xtask build-ebpf` and commit the result";
    let checked_in =
        Manifest::read(workspace::root()).with_context(|| format!("{MANIFEST}: {REMEDY}"))?;
    if !is_current() {
        bail!(
            "{OBJECT} is older than its sources, or not the object that {MANIFEST} describes: {REMEDY}"
        );
    }
    let (_, built) = build(&["-Zwarnings", "--config=build.warnings='deny'"])?;
    if (&built.compiler, &built.linker) != (&checked_in.compiler, &checked_in.linker) {
        eprintln!(
            "warning: {OBJECT} was built by {}, {}; here it is {}, {}. The sources build and their digest is right, \
             but another compiler gives another object: not compared",
            checked_in.compiler, checked_in.linker, built.compiler, built.linker
        );
        return Ok(());
    }
    if built.object != checked_in.object {
        bail!(
            "{OBJECT} is not what its sources give: sha256 {}, built from source {}: {REMEDY}",
            checked_in.object,
            built.object
        );
    }
    eprintln!("{OBJECT} is what its sources give: sha256 {}", built.object);
    Ok(())
}

fn build(options: &[&str]) -> Result<(Vec<u8>, Manifest)> {
    let toolchain = Toolchain::find()?;
    let root = workspace::root();
    let sources = source_digest(root)?;

    command::run(in_kernel_crate(&mut toolchain.cargo()?).args(["fetch", "--locked"]))?;
    let remap = Remap::new(&toolchain)?;
    let mut cargo = toolchain.cargo()?;
    reproducible::configure(&mut cargo, &remap, RUSTFLAGS)?;
    in_kernel_crate(&mut cargo)
        .args([
            "build",
            "--locked",
            "--release",
            "--target",
            TARGET,
            "-Zbuild-std=core",
        ])
        .args(options);
    let executables = executables::build(&mut cargo).with_context(|| {
        format!(
            "building the kernel object with {}, {}",
            toolchain.compiler, toolchain.linker
        )
    })?;
    let linked = &executables::program(&executables, "shaper")?.path;

    let object = strip_dwarf(&fs::read(linked).with_context(|| linked.display().to_string())?)?;
    remap.verify(&object)?;
    let manifest = Manifest {
        sources,
        object: digest(&object),
        compiler: toolchain.compiler,
        linker: toolchain.linker,
    };
    Ok((object, manifest))
}

fn in_kernel_crate(cargo: &mut Command) -> &mut Command {
    cargo.current_dir(workspace::root().join("shaper-ebpf"))
}
