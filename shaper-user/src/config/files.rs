//! Which files make up a configuration, and their text.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use super::diagnostic::ConfigErrors;

/// Where the configuration is unless told otherwise.
pub const DEFAULT_DIR: &str = "/etc/shaper";

const SETTINGS_FILE: &str = "shaper.toml";
pub(super) const LANES_DIR: &str = "lanes.d";
const EXTENSION: &str = "toml";

/// The example lanes, which hold nothing (E10).
const EMBEDDED: &[(&str, &str)] = &[
    (
        "litellm.toml",
        include_str!("../../../lanes.d/litellm.toml"),
    ),
    (
        "provider.toml",
        include_str!("../../../lanes.d/provider.toml"),
    ),
    ("vllm.toml", include_str!("../../../lanes.d/vllm.toml")),
];

/// The largest file that is read, in bytes: far above any lane, far below what would hurt.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Where a configuration came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Directory(PathBuf),
    /// The example lanes in the program.
    Embedded,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(dir) => dir.display().fmt(f),
            Self::Embedded => f.write_str("built-in example lanes"),
        }
    }
}

/// A file and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFile {
    pub path: PathBuf,
    pub text: String,
}

/// The text of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    pub origin: Origin,
    pub settings: Option<TextFile>,
    /// In the order of their paths.
    pub lanes: Vec<TextFile>,
}

impl Files {
    /// The example lanes.
    pub fn embedded() -> Self {
        let lane = |(name, text): &(&str, &str)| TextFile {
            path: Path::new("(built-in)").join(LANES_DIR).join(name),
            text: (*text).to_owned(),
        };
        Self {
            origin: Origin::Embedded,
            settings: None,
            lanes: EMBEDDED.iter().map(lane).collect(),
        }
    }

    /// Reads `dir`, or takes the example lanes if there is no such directory.
    ///
    /// # Errors
    /// As for [`Files::read`]. A directory that cannot be looked at is not an absent one.
    pub fn read_or_embedded(dir: &Path) -> Result<Self, ConfigErrors> {
        match fs::metadata(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::embedded()),
            _ => Self::read(dir),
        }
    }

    /// Reads `dir/shaper.toml`, if there is one, and `dir/lanes.d/*.toml`. Names that begin with a dot are left alone:
    /// editors keep such files beside the one they edit.
    ///
    /// # Errors
    /// A missing directory, and every file that cannot be read.
    pub fn read(dir: &Path) -> Result<Self, ConfigErrors> {
        let lane_paths = lane_paths(dir)?;
        let mut problems = Vec::new();
        let mut read = |path| {
            let keep = |errors: ConfigErrors| problems.extend(errors.into_diagnostics());
            read_file(path).map_err(keep).ok()
        };
        let settings_path = dir.join(SETTINGS_FILE);
        // A link that leads nowhere is there, and an error.
        let has_settings = match fs::symlink_metadata(&settings_path) {
            Err(error) => error.kind() != io::ErrorKind::NotFound,
            Ok(_) => true,
        };
        let settings = has_settings.then(|| read(settings_path)).flatten();
        let lanes = lane_paths.into_iter().filter_map(read).collect();
        if !problems.is_empty() {
            return Err(ConfigErrors::new(problems));
        }
        Ok(Self {
            origin: Origin::Directory(dir.to_owned()),
            settings,
            lanes,
        })
    }
}

/// The lane files of a configuration directory, sorted.
fn lane_paths(dir: &Path) -> Result<Vec<PathBuf>, ConfigErrors> {
    let lanes_dir = dir.join(LANES_DIR);
    let unreadable = |error: io::Error| {
        if !dir.is_dir() {
            return ConfigErrors::of_file(
                dir,
                "is not a configuration directory",
                "a directory with lanes.d/NAME.toml, one file for each lane, and optionally shaper.toml",
            );
        }
        ConfigErrors::of_file(
            &lanes_dir,
            format!("cannot be listed: {error}"),
            "a readable directory with one NAME.toml for each lane; it may be empty",
        )
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(&lanes_dir).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let is_hidden = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_hidden
            && path
                .extension()
                .is_some_and(|extension| extension == EXTENSION)
        {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read_file(path: PathBuf) -> Result<TextFile, ConfigErrors> {
    let problem = |what: String, help: &str| ConfigErrors::of_file(&path, what, help);
    let metadata = fs::metadata(&path)
        .map_err(|e| problem(format!("cannot be read: {e}"), "a readable file"))?;
    if !metadata.is_file() {
        return Err(problem(
            "is not a regular file".to_owned(),
            "a TOML file, or a link to one",
        ));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(problem(
            format!("has {} bytes", metadata.len()),
            "a TOML file of at most 1 MiB",
        ));
    }
    match fs::read_to_string(&path) {
        Ok(text) => Ok(TextFile { path, text }),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(problem(
            "is not UTF-8".to_owned(),
            "a TOML file, which is UTF-8 text",
        )),
        Err(error) => Err(problem(
            format!("cannot be read: {error}"),
            "a readable file",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_lane_is_embedded() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lanes.d");
        let on_disk: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".toml"))
            .collect();
        let mut on_disk: Vec<_> = on_disk.iter().map(String::as_str).collect();
        on_disk.sort_unstable();
        let embedded: Vec<_> = EMBEDDED.iter().map(|(name, _)| *name).collect();
        assert_eq!(embedded, on_disk);
    }

    #[test]
    fn only_an_absent_directory_falls_back_to_the_example_lanes() {
        let dir = tempfile::tempdir().unwrap();
        let absent = Files::read_or_embedded(&dir.path().join("absent")).unwrap();
        assert_eq!(absent.origin, Origin::Embedded);
        let without_lanes = Files::read_or_embedded(dir.path()).unwrap_err();
        assert!(
            without_lanes
                .to_string()
                .contains("lanes.d: cannot be listed"),
            "{without_lanes}"
        );
    }
}
