//! A lock that tells who holds it, and goes with the process that does.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

/// Why the lock could not be had.
#[derive(Debug)]
pub enum LockError {
    /// Somebody has it, and has written this about it; nothing, if it has only just begun.
    Held(String),
    Io(io::Error),
}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A locked file (flock(2)): the lock ends with the process, however that dies, and the file stays until
/// [`LockFile::remove`].
#[derive(Debug)]
pub struct LockFile {
    path: PathBuf,
    file: Flock<File>,
}

impl LockFile {
    /// Locks the file at `path`, made in mode 0600 if it is absent.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn claim(path: &Path) -> Result<Self, LockError> {
        loop {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .mode(0o600)
                // Where somebody else may write, root must not be led to another file.
                .custom_flags(libc::O_NOFOLLOW)
                .open(path)?;
            let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                Err((mut file, Errno::EWOULDBLOCK)) => {
                    return Err(LockError::Held(first_line(&mut file)?));
                }
                Err((_, errno)) => return Err(LockError::Io(errno.into())),
            };
            // Its last holder may have removed it after we opened it: then the next one would lock another file.
            let ours = file.metadata()?;
            match fs::symlink_metadata(path) {
                Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {
                    return Ok(Self {
                        path: path.to_owned(),
                        file,
                    });
                }
                _ => {}
            }
        }
    }

    /// What its last holder has written.
    ///
    /// # Errors
    /// Of the file.
    pub fn read(&mut self) -> io::Result<String> {
        self.file.rewind()?;
        first_line(&mut self.file)
    }

    /// Writes a line about the holder, in place of what is there. Others may read at any moment: the line is whole before
    /// the rest of a longer one goes.
    ///
    /// # Errors
    /// Of the file.
    pub fn write(&mut self, line: &str) -> io::Result<()> {
        let line = format!("{line}\n");
        self.file.rewind()?;
        self.file.write_all(line.as_bytes())?;
        self.file.set_len(line.len() as u64)
    }

    /// Removes the file and gives the lock up, in this order.
    pub fn remove(self) {
        // Gone already: as wanted.
        let _ = fs::remove_file(&self.path);
    }
}

/// What stands in the file up to the end of its first line; nothing in a file without any. A damaged file is no error:
/// whoever reads it will find no sense in it.
fn first_line(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_lock_has_one_holder_who_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("default.lock");
        let mut first = LockFile::claim(&path).unwrap();
        first.write("somebody else, at length").unwrap();
        first.write("the first").unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{mode:o}");
        match LockFile::claim(&path) {
            Err(LockError::Held(who)) => assert_eq!(who, "the first"),
            other => panic!("{other:?}"),
        }
        drop(first);
        assert_eq!(LockFile::claim(&path).unwrap().read().unwrap(), "the first");
    }

    #[test]
    fn a_removed_lock_can_be_claimed_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("default.lock");
        LockFile::claim(&path).unwrap().remove();
        assert!(!path.exists());
        LockFile::claim(&path).unwrap();
    }
}
