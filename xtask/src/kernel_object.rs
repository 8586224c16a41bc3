//! What the checked-in kernel object is, and which sources it stands for.
//!
//! Shared with `shaper-user/build.rs`, which refuses to embed an object that is not what the sources say. So this
//! file depends on nothing else of this crate.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The checked-in object, relative to the workspace.
pub const OBJECT: &str = "shaper-ebpf/prebuilt/shaper.bpf.o";

/// What is known about [`OBJECT`], relative to the workspace.
pub const MANIFEST: &str = "shaper-ebpf/prebuilt/manifest.toml";

/// The files and directories the object is compiled from, relative to the workspace.
pub const SOURCES: [&str; 5] = [
    "shaper-common/Cargo.toml",
    "shaper-common/src",
    "shaper-ebpf/Cargo.lock",
    "shaper-ebpf/Cargo.toml",
    "shaper-ebpf/src",
];

/// Where a kernel object came from, as written beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`source_digest`] of the sources it was compiled from.
    pub sources: String,
    /// [`digest`] of the object itself.
    pub object: String,
    /// Compiler and its LLVM; only the same compiler gives the same object.
    pub compiler: String,
    /// The linker, which generates the code.
    pub linker: String,
}

impl Manifest {
    /// Reads the manifest of the workspace at `root`.
    ///
    /// # Errors
    /// The file is absent, unreadable or not a manifest.
    pub fn read(root: &Path) -> io::Result<Self> {
        toml::from_str(&fs::read_to_string(root.join(MANIFEST))?).map_err(io::Error::other)
    }
}

/// SHA-256 of `bytes`, in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// One digest over names and contents of all [`SOURCES`] in the workspace at `root`.
///
/// Line ends do not count, so that a checkout with CRLF has the same digest.
///
/// # Errors
/// A source cannot be read.
pub fn source_digest(root: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect_files(root, Path::new(source), &mut files)?;
    }
    files.sort();
    let mut hasher = Sha256::new();
    for file in files {
        let mut text = fs::read(root.join(&file))?;
        text.retain(|byte| *byte != b'\r');
        // Lengths keep the end of one field and the start of the next apart.
        for field in [file.as_os_str().as_encoded_bytes(), &text] {
            hasher.update((field.len() as u64).to_le_bytes());
            hasher.update(field);
        }
    }
    Ok(hexadecimal(&hasher.finalize()))
}

fn collect_files(root: &Path, path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if root.join(path).is_dir() {
        for entry in fs::read_dir(root.join(path))? {
            collect_files(root, &path.join(entry?.file_name()), files)?;
        }
    } else {
        files.push(path.to_owned());
    }
    Ok(())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
