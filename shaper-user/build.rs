//! Puts the kernel object where `include_bytes!` finds it: `$OUT_DIR/shaper.bpf.o`.
//!
//! That is the checked-in object, or the file that `SHAPER_BPF_OBJECT` (an absolute path) names, as it is. The
//! checked-in one is refused when the kernel sources have changed since it was built: a controller and an object of
//! different ABIs must not meet.

#[path = "../xtask/src/kernel_object.rs"]
mod kernel_object;

use std::{env, fs, path::Path, process::ExitCode};

use kernel_object::{MANIFEST, Manifest, OBJECT, SOURCES, digest, source_digest};

const OBJECT_OVERRIDE: &str = "SHAPER_BPF_OBJECT";
const REMEDY: &str = "run `cargo xtask build-ebpf`";

fn main() -> ExitCode {
    match object() {
        Ok(object) => {
            let out_dir = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts");
            fs::write(Path::new(&out_dir).join("shaper.bpf.o"), object)
                .expect("OUT_DIR is writable");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            println!("cargo::error={reason}");
            ExitCode::FAILURE
        }
    }
}

fn object() -> Result<Vec<u8>, String> {
    println!("cargo::rerun-if-env-changed={OBJECT_OVERRIDE}");
    if let Some(path) = env::var_os(OBJECT_OVERRIDE) {
        let path = Path::new(&path);
        println!("cargo::rerun-if-changed={}", path.display());
        return fs::read(path)
            .map_err(|error| format!("{OBJECT_OVERRIDE}={}: {error}", path.display()));
    }

    let root = Path::new("..");
    for input in SOURCES.into_iter().chain([OBJECT, MANIFEST]) {
        println!("cargo::rerun-if-changed={}", root.join(input).display());
    }
    let object =
        fs::read(root.join(OBJECT)).map_err(|error| format!("{OBJECT}: {error}; {REMEDY}"))?;
    let manifest =
        Manifest::read(root).map_err(|error| format!("{MANIFEST}: {error}; {REMEDY}"))?;
    let sources =
        source_digest(root).map_err(|error| format!("cannot read the kernel sources: {error}"))?;
    if manifest.object != digest(&object) {
        return Err(format!(
            "{OBJECT} is not the object that {MANIFEST} describes; {REMEDY}"
        ));
    }
    if manifest.sources != sources {
        return Err(format!(
            "{OBJECT} is older than the kernel sources: they have changed since it was built; {REMEDY}"
        ));
    }
    Ok(object)
}
