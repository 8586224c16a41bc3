//! The file: read whole, replaced whole.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

use tracing::warn;

use super::{State, VERSION};

/// Reads the file. `None`: there is none, or it could not be used and was set aside; the log says so.
pub(super) fn read(path: &Path) -> Option<State> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => {
            warn!(path = %path.display(), %error, "what an earlier controller left cannot be read: pauses and adaptation begin anew");
            return None;
        }
    };
    match parse(&text) {
        Ok(state) => Some(state),
        Err(why) => {
            set_aside(path, &why);
            None
        }
    }
}

/// Reads the text of the file.
///
/// # Errors
/// Why it cannot be used: not JSON, of another version, or not this layout.
pub(crate) fn parse(text: &str) -> Result<State, String> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    let found: Versioned = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if found.version != VERSION {
        return Err(format!(
            "it is of version {}, this is version {VERSION}",
            found.version
        ));
    }
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn set_aside(path: &Path, why: &str) {
    let aside = beside(path, "damaged");
    match fs::rename(path, &aside) {
        Ok(()) => warn!(
            why,
            "{} cannot be used and is now {}: pauses and adaptation begin anew",
            path.display(),
            aside.display()
        ),
        Err(error) => warn!(
            why,
            %error,
            "{} cannot be used, nor set aside: pauses and adaptation begin anew",
            path.display()
        ),
    }
}

/// Replaces the file in one step: whoever reads it, after a crash or a power cut too, finds the old content or the new.
///
/// # Errors
/// Of the file system, with the path.
pub(super) fn replace(path: &Path, state: &State) -> io::Result<()> {
    let new = beside(path, "new");
    let text = serde_json::to_vec_pretty(state).map_err(io::Error::other)?;
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&new)
        .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&new, path));
    // The name is durable once its directory is.
    let directory = path.parent().unwrap_or(Path::new("."));
    written
        .and_then(|()| File::open(directory)?.sync_all())
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        serde_json::from_str(
            r#"{"version": 1, "saved_at": "2026-01-02T03:00:00Z", "lanes": {"reasoning": {"factor": 0.49,
            "calm_since": "2026-01-02T02:59:00Z", "pause": {"until": "2026-01-02T03:00:07Z", "by": "gateway"}}}}"#,
        )
        .unwrap()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lanes.json");
        assert_eq!(read(&path), None);
        for _ in 0..2 {
            replace(&path, &state()).unwrap();
            assert_eq!(read(&path), Some(state()));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// A half-written, foreign or newer file is set aside, and what comes next is written as ever.
    #[test]
    fn a_file_that_cannot_be_used_is_set_aside() {
        let whole = serde_json::to_string(&state()).unwrap();
        for damaged in [
            "",
            "\0\0\0\0",
            &whole[..whole.len() / 2],
            "[]",
            &whole.replace("\"version\":1", "\"version\":2"),
            &whole.replace("0.49", "\"half\""),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("lanes.json");
            fs::write(&path, damaged).unwrap();
            assert_eq!(read(&path), None, "{damaged}");
            let aside = fs::read_to_string(dir.path().join("lanes.json.damaged")).unwrap();
            assert_eq!(aside, damaged);
            replace(&path, &state()).unwrap();
            assert_eq!(read(&path), Some(state()));
        }
    }

    #[test]
    fn an_error_names_the_file() {
        let error = replace(Path::new("/proc/nowhere/lanes.json"), &state()).unwrap_err();
        assert!(
            error.to_string().contains("/proc/nowhere/lanes.json"),
            "{error}"
        );
    }
}
