//! Who asks over the control socket, and what they may.

use std::{fmt, io};

use nix::unistd::{Uid, geteuid};
use tokio::net::UnixStream;

/// The process at the other end, as the kernel vouches for it (`SO_PEERCRED`, unix(7)): of the time of its `connect`.
///
/// Who may connect at all, the mode of the socket's file says: its owner and its group. They may look.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    uid: Uid,
    pid: Option<i32>,
    /// The controller's own.
    owner: Uid,
}

impl Peer {
    /// # Errors
    /// What `getsockopt` says.
    pub fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        Ok(Self {
            uid: Uid::from_raw(credentials.uid()),
            pid: credentials.pid(),
            owner: geteuid(),
        })
    }

    /// Root and the controller's own user. A user of another user namespace shows as the overflow user, so as neither.
    pub fn may_change(self) -> bool {
        self.uid.is_root() || self.uid == self.owner
    }

    /// What one is told who may not.
    pub fn refusal(self) -> String {
        let Self { uid, owner, .. } = self;
        let owner = if owner.is_root() {
            String::new()
        } else {
            format!(" and user {owner}, who runs the controller,")
        };
        format!("user {uid} may look, but only root{owner} may change anything: use sudo")
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}", self.uid)?;
        match self.pid {
            Some(pid) => write!(f, ", pid {pid}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, owner: u32) -> Peer {
        Peer {
            uid: Uid::from_raw(uid),
            pid: Some(77),
            owner: Uid::from_raw(owner),
        }
    }

    #[test]
    fn root_and_the_controllers_user_may_change_and_the_others_are_told_so() {
        assert!(peer(0, 0).may_change() && peer(0, 990).may_change());
        assert!(peer(990, 990).may_change());
        assert!(!peer(1000, 0).may_change() && !peer(1000, 990).may_change());
        assert_eq!(
            peer(1000, 0).refusal(),
            "user 1000 may look, but only root may change anything: use sudo"
        );
        assert!(peer(1000, 990).refusal().contains("user 990"));
        assert_eq!(peer(1000, 0).to_string(), "uid 1000, pid 77");
    }
}
