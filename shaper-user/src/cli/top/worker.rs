//! The thread of `shaper top` that talks to the controller.

use std::{
    io,
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::sync::mpsc::UnboundedSender;

use super::{
    Arrival,
    model::{Change, Input, Look},
};
use crate::{cli::follow::Follow, config::Setting, control::ClientError};

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Looks every second, and carries changes out.
#[derive(Debug)]
pub struct Worker(Sender<Change>);

impl Worker {
    pub fn start(mut follow: Follow, inputs: UnboundedSender<Arrival>) -> io::Result<Self> {
        let (changes, wanted) = mpsc::channel();
        thread::Builder::new()
            .name("controller".into())
            .spawn(move || {
                let mut next = Instant::now() + INTERVAL;
                loop {
                    let left = next.saturating_duration_since(Instant::now());
                    let input = match wanted.recv_timeout(left) {
                        Ok(change) => {
                            // Whoever changes something wants to see it.
                            next = Instant::now();
                            Input::Changed(carry_out(&mut follow, &change))
                        }
                        Err(RecvTimeoutError::Timeout) => {
                            next = Instant::now() + INTERVAL;
                            let looked = look(&mut follow).map(Box::new);
                            Input::Looked(looked.map_err(|error| error.to_string()))
                        }
                        Err(RecvTimeoutError::Disconnected) => return,
                    };
                    if inputs.send(Arrival::Input(input)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self(changes))
    }

    pub fn change(&self, change: Change) {
        // Fails only if the thread has panicked, which `show` notices by itself.
        let _ = self.0.send(change);
    }
}

/// One look.
///
/// # Errors
/// Any [`ClientError`].
pub fn look(follow: &mut Follow) -> Result<Look, ClientError> {
    follow.ask(|client| {
        Ok(Look {
            snapshot: client.status()?,
            waiters: client.waiters()?,
        })
    })
}

/// Does it, and says so in words.
fn carry_out(follow: &mut Follow, change: &Change) -> Result<String, String> {
    let done = follow.ask(|client| match change {
        Change::Pause { lane, length } => {
            let pause = client.pause(lane, *length)?;
            Ok(pause.told(lane, *length, Timestamp::now()))
        }
        Change::Resume { lane } => {
            client.resume(lane)?;
            Ok(format!("{lane} is not paused any more"))
        }
        Change::Limit { lane, limit } => {
            let setting = Setting {
                key: "max_inflight".to_owned(),
                value: limit.to_string(),
            };
            let warnings = client.set(lane, &[setting])?;
            let done = format!("{lane}: max_inflight = {limit}");
            if warnings.is_empty() {
                return Ok(format!("{done}, until a restart or a change of its file"));
            }
            Ok(format!("{done}; warning: {}", warnings.join("; ")))
        }
    });
    done.map(|done| in_a_line(&done))
        .map_err(|error| in_a_line(&error.to_string()))
}

/// What is said in several lines, such as a mistake and its remedy, for the one that the screen has for it.
fn in_a_line(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    lines.join("; ")
}
