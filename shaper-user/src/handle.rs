//! The front of the controller for everything that is not its loop: HTTP, the control socket.
//!
//! The loop owns the state; others send it a [`Command`] and wait for the reply, for a bounded time. What is looked at
//! is shared: however many clients poll, the loop makes at most ten snapshots and ten lists of waiters a second.

use std::{fs, sync::Arc, time::Duration};

use tokio::{
    sync::{Mutex, mpsc, oneshot},
    time::{Instant, timeout},
};

use crate::{
    config::Setting,
    history::{Asker, Question, Report},
    pause::InForce,
    snapshot::{Levels, Snapshot, Waiters},
};

/// How long an answer is handed out again instead of asking for a new one.
const FRESH: Duration = Duration::from_millis(100);

/// Commands that wait for the loop at once; one more waits for room.
const QUEUE: usize = 64;

/// What the loop is asked to do. It answers through the sender; a sender that is closed already belongs to somebody
/// who has given up, and its command is to be skipped.
#[derive(Debug)]
pub enum Command {
    Snapshot(oneshot::Sender<Snapshot>),
    Levels(oneshot::Sender<Levels>),
    Waiters(oneshot::Sender<Waiters>),
    /// What happened, from the history.
    Stats {
        question: Question,
        asker: Asker,
    },
    /// Start nothing in the lane for this long from now. The answer is the pause in force then: a longer one stays.
    Pause {
        lane: String,
        length: Duration,
        reply: oneshot::Sender<Result<InForce, CommandError>>,
    },
    /// End the lane's pause, whoever began it.
    Resume {
        lane: String,
        reply: oneshot::Sender<Result<(), CommandError>>,
    },
    /// Change settings of the lane, all or none, until the controller restarts or the lane's file changes. The answer is
    /// what is worth a warning, each in words.
    Set {
        lane: String,
        settings: Vec<Setting>,
        reply: oneshot::Sender<Result<Vec<String>, CommandError>>,
    },
    /// End, and leave nothing attached. The answer comes before the end.
    Detach(oneshot::Sender<Result<(), CommandError>>),
}

impl Command {
    /// Whether the asker has given up, so that the command must not be carried out.
    pub fn is_abandoned(&self) -> bool {
        match self {
            Self::Snapshot(reply) => reply.is_closed(),
            Self::Levels(reply) => reply.is_closed(),
            Self::Waiters(reply) => reply.is_closed(),
            Self::Stats { asker, .. } => asker.is_closed(),
            Self::Pause { reply, .. } => reply.is_closed(),
            Self::Set { reply, .. } => reply.is_closed(),
            Self::Resume { reply, .. } | Self::Detach(reply) => reply.is_closed(),
        }
    }
}

/// Why the controller did not do what it was told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("there is no lane {lane:?}; the lanes: {}", known.join(", "))]
    UnknownLane { lane: String, known: Vec<String> },
    /// The lane's rules do not allow this; the text says why and what would be right.
    #[error("{0}")]
    Refused(String),
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    #[error(
        "the controller did not answer within {} s: its loop is stuck or the host is overloaded; see its log",
        .0.as_secs_f64()
    )]
    NoAnswer(Duration),
    #[error("the controller is shutting down")]
    Gone,
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// Cloneable, and usable from any runtime.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    patience: Duration,
    snapshot: Latest<Snapshot>,
    waiters: Latest<Waiters>,
}

/// The last answer of one kind. Locked while one is being made, so that others wait for that one instead of asking for
/// their own.
#[derive(Debug)]
struct Latest<T>(Arc<Mutex<Option<Made<T>>>>);

#[derive(Debug)]
struct Made<T> {
    at: Instant,
    answer: Arc<T>,
}

impl<T> Clone for Latest<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Latest<T> {
    async fn get(
        &self,
        make: impl Future<Output = Result<T, HandleError>>,
    ) -> Result<Arc<T>, HandleError> {
        let mut latest = self.0.lock().await;
        if let Some(Made { at, answer }) = &*latest
            && at.elapsed() < FRESH
        {
            return Ok(answer.clone());
        }
        let answer = Arc::new(make.await?);
        *latest = Some(Made {
            at: Instant::now(),
            answer: answer.clone(),
        });
        Ok(answer)
    }

    async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

impl Handle {
    /// A handle and the receiver for the controller's loop. Every call fails after `patience` without an answer.
    pub fn new(patience: Duration) -> (Self, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel(QUEUE);
        let handle = Self {
            commands,
            patience,
            snapshot: Latest::default(),
            waiters: Latest::default(),
        };
        (handle, receiver)
    }

    /// The state of all lanes, at most 100 ms old.
    ///
    /// # Errors
    /// [`HandleError::NoAnswer`] and [`HandleError::Gone`].
    pub async fn snapshot(&self) -> Result<Arc<Snapshot>, HandleError> {
        self.bounded(self.snapshot.get(self.ask(Command::Snapshot)))
            .await
    }

    /// How full the lanes are, now.
    ///
    /// # Errors
    /// [`HandleError::NoAnswer`] and [`HandleError::Gone`].
    pub async fn levels(&self) -> Result<Levels, HandleError> {
        self.bounded(self.ask(Command::Levels)).await
    }

    /// Who waits, with the names of their processes, at most 100 ms old.
    ///
    /// # Errors
    /// [`HandleError::NoAnswer`] and [`HandleError::Gone`].
    pub async fn waiters(&self) -> Result<Arc<Waiters>, HandleError> {
        self.bounded(self.waiters.get(async {
            let mut waiters = self.ask(Command::Waiters).await?;
            for waiter in &mut waiters.waiters {
                waiter.command = command_name(waiter.pid);
            }
            Ok(waiters)
        }))
        .await
    }

    /// What happened, by lane, class and hour.
    ///
    /// # Errors
    /// Any [`HandleError`].
    pub async fn stats(&self, question: Question) -> Result<Report, HandleError> {
        self.bounded(async {
            let ask = |asker| Command::Stats { question, asker };
            Ok(self.ask(ask).await??)
        })
        .await
    }

    /// Pauses a lane; returns the pause that is in force then, which is a longer one if there was one.
    ///
    /// # Errors
    /// Any [`HandleError`].
    pub async fn pause(&self, lane: String, length: Duration) -> Result<InForce, HandleError> {
        self.change(|reply| Command::Pause {
            lane,
            length,
            reply,
        })
        .await
    }

    /// Ends a lane's pause.
    ///
    /// # Errors
    /// Any [`HandleError`].
    pub async fn resume(&self, lane: String) -> Result<(), HandleError> {
        self.change(|reply| Command::Resume { lane, reply }).await
    }

    /// Changes settings of a lane, all or none; returns what is worth a warning, each in words.
    ///
    /// # Errors
    /// Any [`HandleError`].
    pub async fn set(
        &self,
        lane: String,
        settings: Vec<Setting>,
    ) -> Result<Vec<String>, HandleError> {
        self.change(|reply| Command::Set {
            lane,
            settings,
            reply,
        })
        .await
    }

    /// Ends the controller, and nothing stays attached.
    ///
    /// # Errors
    /// Any [`HandleError`].
    pub async fn detach(&self) -> Result<(), HandleError> {
        self.change(Command::Detach).await
    }

    async fn change<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, CommandError>>) -> Command,
    ) -> Result<T, HandleError> {
        self.bounded(async {
            let done = self.ask(command).await?;
            // Whoever changes something and then looks must see the change.
            self.snapshot.forget().await;
            self.waiters.forget().await;
            Ok(done?)
        })
        .await
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, HandleError> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(command(reply))
            .await
            .map_err(|_| HandleError::Gone)?;
        answer.await.map_err(|_| HandleError::Gone)
    }

    async fn bounded<T>(
        &self,
        answer: impl Future<Output = Result<T, HandleError>>,
    ) -> Result<T, HandleError> {
        timeout(self.patience, answer)
            .await
            .unwrap_or(Err(HandleError::NoAnswer(self.patience)))
    }
}

/// The name of a process that lives. Not its command line, in which people put credentials (E7).
fn command_name(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

/// A stand-in for the controller's loop.
#[cfg(test)]
pub(crate) mod stub {
    use jiff::Timestamp;

    use super::*;
    use crate::{history::samples::two_hours, policy::PausedBy, snapshot::samples};

    /// Answers every command as a controller with the one lane `reasoning` would.
    pub(crate) async fn answer(mut commands: mpsc::Receiver<Command>) {
        while let Some(command) = commands.recv().await {
            // Whoever asked may have given up.
            let _ = match command {
                Command::Snapshot(reply) => reply.send(samples::busy()).is_ok(),
                Command::Levels(reply) => reply.send(Levels::of(&samples::busy())).is_ok(),
                Command::Stats { question, asker } => {
                    let known = question.lane.map_or(Ok(()), known);
                    asker.send(known.map(|()| two_hours())).is_ok()
                }
                Command::Waiters(reply) => {
                    let mut waiters = samples::waiters();
                    waiters.waiters[0].command = None;
                    reply.send(waiters).is_ok()
                }
                Command::Pause {
                    lane,
                    length,
                    reply,
                } => reply.send(known(lane).map(|()| in_force(length))).is_ok(),
                Command::Resume { lane, reply } => reply.send(known(lane)).is_ok(),
                Command::Detach(reply) => reply.send(Ok(())).is_ok(),
                Command::Set {
                    lane,
                    settings,
                    reply,
                } => reply
                    .send(known(lane).and_then(|()| warnings(&settings)))
                    .is_ok(),
            };
        }
    }

    /// As if an operator had paused the lane for ten minutes.
    fn in_force(length: Duration) -> InForce {
        InForce {
            until: Timestamp::now() + length.max(Duration::from_secs(600)),
            by: PausedBy::Operator,
        }
    }

    /// Settings are numbers; those above 99 are doubtful.
    fn warnings(settings: &[Setting]) -> Result<Vec<String>, CommandError> {
        let mut warnings = Vec::new();
        for Setting { key, value } in settings {
            match value.parse::<u32>() {
                Ok(..100) => {}
                Ok(_) => warnings.push(format!("`{key}`: much")),
                Err(error) => return Err(CommandError::Refused(format!("{key}: {error}"))),
            }
        }
        Ok(warnings)
    }

    fn known(lane: String) -> Result<(), CommandError> {
        if lane == "reasoning" {
            return Ok(());
        }
        Err(CommandError::UnknownLane {
            lane,
            known: vec!["reasoning".into()],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::samples;

    const PATIENCE: Duration = Duration::from_secs(2);

    fn paused_clock() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
    }

    /// A17: however many poll at once, the loop makes one snapshot.
    #[test]
    fn simultaneous_polls_cost_one_snapshot() {
        paused_clock().block_on(async {
            let (handle, mut commands) = Handle::new(PATIENCE);
            let polls: Vec<_> = (0..50)
                .map(|_| {
                    let handle = handle.clone();
                    tokio::spawn(async move { handle.snapshot().await })
                })
                .collect();
            let Some(Command::Snapshot(reply)) = commands.recv().await else {
                panic!("no snapshot was asked for");
            };
            reply.send(samples::busy()).unwrap();
            for poll in polls {
                assert_eq!(*poll.await.unwrap().unwrap(), samples::busy());
            }
            assert!(commands.try_recv().is_err(), "a second snapshot was made");
        });
    }

    /// A17: the names are looked up outside of the loop, once for all who ask.
    #[test]
    fn waiters_are_named_beside_the_loop() {
        paused_clock().block_on(async {
            let (handle, commands) = Handle::new(PATIENCE);
            let answers = tokio::spawn(stub::answer(commands));
            let first = handle.waiters().await.unwrap();
            assert_eq!(*first, samples::waiters());
            answers.abort();
            assert!(Arc::ptr_eq(&first, &handle.waiters().await.unwrap()));
        });
    }

    #[test]
    fn a_process_that_is_gone_has_no_name() {
        // Above the kernel's greatest pid (PID_MAX_LIMIT, 2^22).
        assert_eq!(command_name(u32::MAX), None);
    }

    #[test]
    fn a_stuck_loop_is_told_within_the_patience() {
        paused_clock().block_on(async {
            let (handle, commands) = Handle::new(PATIENCE);
            let begun = Instant::now();
            assert_eq!(
                handle.snapshot().await,
                Err(HandleError::NoAnswer(PATIENCE))
            );
            assert_eq!(begun.elapsed(), PATIENCE);
            drop(commands);
            assert_eq!(handle.snapshot().await, Err(HandleError::Gone));
        });
    }

    #[test]
    fn a_command_given_up_on_is_not_carried_out() {
        paused_clock().block_on(async {
            let (handle, mut commands) = Handle::new(PATIENCE);
            let pause = handle.pause("reasoning".into(), Duration::from_secs(30));
            assert_eq!(pause.await, Err(HandleError::NoAnswer(PATIENCE)));
            assert!(commands.recv().await.unwrap().is_abandoned());
        });
    }

    #[test]
    fn a_change_is_seen_by_the_next_look() {
        paused_clock().block_on(async {
            let (handle, mut commands) = Handle::new(PATIENCE);
            let look = || {
                let handle = handle.clone();
                tokio::spawn(async move { handle.snapshot().await })
            };
            let first = look();
            let Some(Command::Snapshot(reply)) = commands.recv().await else {
                panic!("no snapshot was asked for");
            };
            reply.send(samples::busy()).unwrap();
            first.await.unwrap().unwrap();

            let resume = {
                let handle = handle.clone();
                tokio::spawn(async move { handle.resume("reasoning".into()).await })
            };
            let Some(Command::Resume { reply, .. }) = commands.recv().await else {
                panic!("no resume was asked for");
            };
            reply.send(Ok(())).unwrap();
            resume.await.unwrap().unwrap();

            let _second = look();
            assert!(matches!(commands.recv().await, Some(Command::Snapshot(_))));
        });
    }
}
