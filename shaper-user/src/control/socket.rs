//! The socket's file: one controller owns it, and the next one can tell.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{fs::PermissionsExt, net::UnixListener},
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
        },
        stat::{Mode, fchmod},
    },
};

use crate::{
    lock_file::{LockError, LockFile},
    paths::RUN_DIR,
};

/// Owner and group may talk to the controller.
const SOCKET_MODE: u32 = 0o660;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;

/// Why the control socket could not be had.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// C1: one authority.
    #[error(
        "another controller, {owner}, has the control socket {}: stop it, or give this one its own with --instance",
        path.display()
    )]
    Taken { path: PathBuf, owner: Owner },
    #[error("cannot make the control socket {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// The process that holds the socket, as far as it is known.
#[derive(Debug, PartialEq, Eq)]
pub struct Owner(Option<i32>);

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("just starting"),
        }
    }
}

/// A listening control socket. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    listener: UnixListener,
    /// On `PATH.lock`: two instances may be given one socket.
    lock: Option<LockFile>,
}

impl ControlSocket {
    /// Makes the socket, with its directory if need be, in mode 0660. A file left by a controller that died is replaced.
    ///
    /// # Errors
    /// [`BindError::Taken`] while another controller lives, [`BindError::Io`] if the file system says no.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let io_error = |source: io::Error| BindError::Io {
            path: path.to_owned(),
            source,
        };
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(io_error)?;
        }
        let lock = lock(path)?;
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(error)),
            _ => {}
        }
        let listener = listener(path).map_err(io_error)?;
        Ok(Self {
            path: path.to_owned(),
            listener,
            lock: Some(lock),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        if let Some(lock) = self.lock.take() {
            lock.remove();
        }
        if self.path.parent() == Some(Path::new(RUN_DIR)) {
            // Others may have theirs there.
            let _ = fs::remove_dir(RUN_DIR);
        }
    }
}

/// Where the lock of a socket is.
fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    path.into()
}

fn lock(socket: &Path) -> Result<LockFile, BindError> {
    let io_error = |source: io::Error| BindError::Io {
        path: socket.to_owned(),
        source,
    };
    match LockFile::claim(&lock_path(socket)) {
        Ok(mut lock) => {
            let pid = std::process::id().to_string();
            lock.write(&pid).map_err(io_error)?;
            Ok(lock)
        }
        Err(LockError::Held(pid)) => Err(BindError::Taken {
            path: socket.to_owned(),
            owner: Owner(pid.parse().ok()),
        }),
        Err(LockError::Io(error)) => Err(io_error(error)),
    }
}

/// Whether somebody listens at the socket. Takes no lock and asks nothing, so it is in nobody's way.
///
/// # Errors
/// When it cannot be told, for lack of permission.
pub fn is_listening(path: &Path) -> io::Result<bool> {
    // Does not wait where many wait to be accepted, as a blocking one would (unix_stream_connect, net/unix/af_unix.c).
    let fd = unix_socket()?;
    match connect(fd.as_raw_fd(), &UnixAddr::new(path)?) {
        Ok(()) | Err(Errno::EAGAIN) => Ok(true),
        Err(Errno::ECONNREFUSED | Errno::ENOENT | Errno::ENOTDIR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes what a controller that was killed has left of its socket. Does nothing while another one has it.
///
/// # Errors
/// Of the file system.
pub fn remove_stale(socket: &Path) -> io::Result<()> {
    match LockFile::claim(&lock_path(socket)) {
        Ok(lock) => {
            let removed = fs::remove_file(socket);
            lock.remove();
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        }
        Err(LockError::Held(_)) => Ok(()),
        // Not even the directory is there.
        Err(LockError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(LockError::Io(error)) => Err(error),
    }
}

/// One that does not wait.
fn unix_socket() -> io::Result<OwnedFd> {
    Ok(socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?)
}

fn listener(path: &Path) -> io::Result<UnixListener> {
    let fd = unix_socket()?;
    // Before the bind: the file takes the socket's mode less the umask (unix(7), net/unix/af_unix.c), so it is never
    // open to more than it should be. After it: the umask may have taken away what the group needs.
    fchmod(&fd, Mode::from_bits_truncate(SOCKET_MODE))?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
    listen(&fd, Backlog::new(BACKLOG)?)?;
    Ok(fd.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_for_its_owner_and_group() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/default.sock");
        let _socket = ControlSocket::bind(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660, "{mode:o}");
    }

    #[test]
    fn a_socket_is_listened_at_while_its_owner_lives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("default.sock");
        assert!(!is_listening(&path).unwrap());
        let socket = ControlSocket::bind(&path).unwrap();
        // More than wait to be accepted.
        for _ in 0..2 * BACKLOG {
            assert!(is_listening(&path).unwrap());
        }
        drop(socket);
        drop(UnixListener::bind(&path).unwrap());
        assert!(!is_listening(&path).unwrap());
    }

    /// C1: a second controller refuses to start and says where the first is.
    #[test]
    fn a_second_controller_is_told_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("default.sock");
        let _first = ControlSocket::bind(&path).unwrap();
        let error = ControlSocket::bind(&path).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert!(
            error.contains(&format!("process {}", std::process::id())),
            "{error}"
        );
    }

    #[test]
    fn what_a_dead_controller_left_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("default.sock");
        // A bound socket whose owner is gone, and a lock file that nobody locks.
        drop(UnixListener::bind(&path).unwrap());
        fs::write(dir.path().join("default.sock.lock"), "1234567").unwrap();
        let socket = ControlSocket::bind(&path).unwrap();
        drop(socket);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        remove_stale(&path).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        remove_stale(&path).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
