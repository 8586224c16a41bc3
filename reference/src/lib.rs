//! The reference pages of the book. Each is written from what the program itself uses, so that it cannot say anything
//! else: the configuration's from the table of keys that the parser reads by, the metrics' from what is registered, the
//! commands' from the command line's own description.

mod commands;
mod configuration;
mod metrics;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// Where the pages are, relative to the top of the workspace.
pub const DIRECTORY: &str = "docs/reference";

/// One page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Relative to [`DIRECTORY`].
    pub name: &'static str,
    /// Markdown.
    pub text: String,
}

/// All pages, as this program would have them.
pub fn pages() -> [Page; 3] {
    [
        Page {
            name: "commands.md",
            text: commands::page(),
        },
        Page {
            name: "configuration.md",
            text: configuration::page(),
        },
        Page {
            name: "metrics.md",
            text: metrics::page(),
        },
    ]
}

/// Writes the pages that are not as they should be, and returns them.
///
/// # Errors
/// A page cannot be read or written.
pub fn renew(workspace: &Path) -> Result<Vec<PathBuf>> {
    let stale = stale(workspace)?;
    for (path, page) in &stale {
        fs::write(path, &page.text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(stale.into_iter().map(|(path, _)| path).collect())
}

/// The pages that are not as they should be, with what they should be.
///
/// # Errors
/// A page cannot be read.
pub fn stale(workspace: &Path) -> Result<Vec<(PathBuf, Page)>> {
    let mut stale = Vec::new();
    for page in pages() {
        let path = workspace.join(DIRECTORY).join(page.name);
        let is_current = match fs::read_to_string(&path) {
            Ok(text) => text == page.text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        if !is_current {
            stale.push((path, page));
        }
    }
    Ok(stale)
}

/// What stands at the top of every page.
fn head(title: &str, source: &str) -> String {
    format!(
        "# {title}\n\n<!-- Written by `cargo xtask docs` from {source}. Change it there. -->\n\n"
    )
}
