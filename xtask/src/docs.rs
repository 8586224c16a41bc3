//! `cargo xtask docs`: the reference pages from what the program knows, and the book from all pages.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{
    command::{self, cargo, find_program, show},
    executables, workspace,
};

pub const MDBOOK: &str = "mdbook";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write nothing below docs/; fail if a reference page is not what the program knows
    #[arg(long)]
    check: bool,
}

/// Renews or checks the pages in `docs/reference`, and builds the book below `target/book` if mdBook is there.
///
/// # Errors
/// A failed build, a page that is not current, or a book that cannot be built.
pub fn run(args: &Args) -> Result<()> {
    let mut build = cargo();
    build.current_dir(workspace::root());
    build.args(["build", "--locked", "--package", "shaper-reference"]);
    let executables = executables::build(&mut build)?;
    let mut reference = Command::new(&executables::program(&executables, "shaper-reference")?.path);
    reference
        .args(args.check.then_some("--check"))
        .arg(workspace::root());
    show(&reference);
    if !reference.status()?.success() {
        bail!("the reference pages are not current");
    }
    if find_program(MDBOOK).is_none() {
        eprintln!("no book: there is no {MDBOOK}; `cargo xtask setup --book` installs it");
        return Ok(());
    }
    command::run(Command::new(MDBOOK).arg("build").arg(workspace::root()))
}
