//! The socket's file: one controller owns it, and the next one can tell.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::{OpenOptionsExt, PermissionsExt},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    sys::{
        socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket},
        stat::{Mode, fchmod},
    },
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
    /// The lock on `PATH.lock`. It ends with the process, however that dies, so a leftover file is never in the way.
    _lock: Flock<File>,
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
            _lock: lock,
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
        // The lock file stays: to remove it would let two controllers lock two files of one name.
        let _ = fs::remove_file(&self.path);
    }
}

fn lock(socket: &Path) -> Result<Flock<File>, BindError> {
    let io_error = |source: io::Error| BindError::Io {
        path: socket.to_owned(),
        source,
    };
    let mut lock_path = socket.as_os_str().to_owned();
    lock_path.push(".lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(lock_path)
        .map_err(io_error)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            lock.set_len(0).map_err(io_error)?;
            write!(lock, "{}", std::process::id()).map_err(io_error)?;
            Ok(lock)
        }
        Err((mut file, Errno::EWOULDBLOCK)) => {
            let mut pid = String::new();
            file.read_to_string(&mut pid).map_err(io_error)?;
            Err(BindError::Taken {
                path: socket.to_owned(),
                owner: Owner(pid.parse().ok()),
            })
        }
        Err((_, errno)) => Err(io_error(errno.into())),
    }
}

fn listener(path: &Path) -> io::Result<UnixListener> {
    let fd: OwnedFd = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
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
        assert!(!path.exists());
    }
}
