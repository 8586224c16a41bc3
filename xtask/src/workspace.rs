//! Where things are in the workspace.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// The top of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a directory of the workspace")
}

/// Cargo's own directory: downloaded sources and installed programs.
///
/// # Errors
/// Neither `CARGO_HOME` nor `HOME` is set.
pub fn cargo_home() -> Result<PathBuf> {
    if let Some(cargo_home) = env::var_os("CARGO_HOME") {
        return Ok(PathBuf::from(cargo_home));
    }
    let home = env::var_os("HOME")
        .context("neither CARGO_HOME nor HOME is set: cannot find cargo's directory")?;
    Ok(PathBuf::from(home).join(".cargo"))
}
