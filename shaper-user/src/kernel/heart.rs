//! Signs of life while there is no control loop yet: loading programs takes seconds, and the gates of an earlier controller
//! must not open meanwhile.

use std::{
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use caps::CapSet;
use shaper_common::Globals;
use tracing::warn;

use super::{clock::now, shared::SharedArray, tables::the_only};

/// Time between two signs of life. The shortest `fail_after` is twice this.
pub const HEARTBEAT: Duration = Duration::from_millis(500);

/// Beats until [`Heart::hand_over`]. Dropped before, it leaves the globals as it found them: a start that failed has
/// never been.
#[derive(Debug)]
pub struct Heart {
    globals: Arc<SharedArray<Globals>>,
    former: Option<Former>,
    beating: Option<(Sender<()>, JoinHandle<()>)>,
}

/// What the globals said before.
#[derive(Debug)]
struct Former {
    heartbeat_ns: u64,
    dns_netns: u64,
    fail_after_ns: u64,
    on_loss: u32,
}

impl Heart {
    pub(super) fn start(globals: SharedArray<Globals>) -> Self {
        let globals = Arc::new(globals);
        let found = the_only(&globals);
        let former = Former {
            heartbeat_ns: found.heartbeat_ns.load(),
            dns_netns: found.dns_netns.load(),
            fail_after_ns: found.fail_after_ns.load(),
            on_loss: found.on_loss.load(),
        };
        let (stop, stopped) = channel();
        let beaten = globals.clone();
        let thread = thread::Builder::new()
            .name("heart".to_owned())
            .spawn(move || {
                // It writes to memory and sleeps: that takes no privilege. The process gives its own up later.
                for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
                    let _ = caps::clear(None, set);
                }
                loop {
                    the_only(&beaten).heartbeat_ns.store(now().0);
                    if stopped.recv_timeout(HEARTBEAT) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            });
        let beating = match thread {
            Ok(thread) => Some((stop, thread)),
            Err(error) => {
                warn!(%error, "no sign of life until the control loop runs: gates may open meanwhile");
                None
            }
        };
        Self {
            globals,
            former: Some(former),
            beating,
        }
    }

    /// The control loop beats from now on.
    pub fn hand_over(mut self) {
        self.former = None;
        self.stop();
    }

    fn stop(&mut self) {
        if let Some((stop, thread)) = self.beating.take() {
            drop(stop);
            // It does not panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.stop();
        if let Some(former) = self.former.take() {
            let globals = the_only(&self.globals);
            globals.fail_after_ns.store(former.fail_after_ns);
            globals.on_loss.store(former.on_loss);
            globals.dns_netns.store(former.dns_netns);
            globals.heartbeat_ns.store(former.heartbeat_ns);
        }
    }
}
