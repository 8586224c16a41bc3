//! The mount table.

use std::{ffi::OsStr, fs, io, path::PathBuf};

/// The calling process's.
///
/// # Errors
/// What reading it says.
pub(super) fn table() -> io::Result<String> {
    fs::read_to_string("/proc/self/mounts")
}

/// The mount points of one kind of file system.
pub(super) fn of_kind<'a>(table: &'a str, kind: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
    table.lines().filter_map(move |line| {
        let mut fields = line.split(' ').skip(1);
        let (path, of_kind) = (fields.next()?, fields.next()?);
        (of_kind == kind).then(|| PathBuf::from(OsStr::new(&unescape(path))))
    })
}

/// The mount table writes space, tab, newline and backslash as three octal digits (`mangle_path`, fs/seq_file.c).
fn unescape(path: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(path.to_owned(), |path, (from, to)| path.replace(from, to))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn first(table: &str, kind: &str) -> Option<PathBuf> {
        of_kind(table, kind).next()
    }

    #[test]
    fn mounts_are_found_by_their_kind() {
        let hybrid = "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                      bpf /sys/fs/bpf bpf rw 0 0\n";
        assert_eq!(
            first(hybrid, "cgroup2").as_deref(),
            Some(Path::new("/sys/fs/cgroup/unified"))
        );
        assert_eq!(
            first(hybrid, "bpf").as_deref(),
            Some(Path::new("/sys/fs/bpf"))
        );
        assert_eq!(
            first("x /a\\040b cgroup2 rw 0 0", "cgroup2").as_deref(),
            Some(Path::new("/a b"))
        );
        assert_eq!(
            first("cgroup /sys/fs/cgroup cgroup rw 0 0\n", "cgroup2"),
            None
        );
    }
}
