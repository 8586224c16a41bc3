//! A door that opens once and lets everybody through who waits at it, usable with poll(2).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Shut until opened, then open for good. Clones are the same door.
#[derive(Clone, Debug)]
pub struct Latch(Arc<EventFd>);

impl Latch {
    /// A shut latch.
    ///
    /// # Panics
    /// If the process is out of file descriptors.
    pub fn shut() -> Self {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .expect("a file descriptor for a latch");
        Self(Arc::new(event))
    }

    /// Opens it. Nobody reads the counter, so it stays readable, that is, open.
    pub fn open(&self) {
        self.0.write(1).expect("far from the counter's end");
    }
}

impl Latch {
    /// Waits until it is open.
    ///
    /// # Panics
    /// If waiting fails, which it does not.
    pub fn wait(&self) {
        let mut door = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        while let Err(errno) = poll(&mut door, PollTimeout::NONE) {
            assert_eq!(errno, Errno::EINTR, "waiting at a latch");
        }
    }
}

impl AsFd for Latch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
