//! The text of a lane's configuration file.

use std::net::SocketAddr;
use std::time::Duration;

/// A lane file in the making. Unless told otherwise the lane holds connects for the whole wait, has room for a hundred
/// waiters and lets nobody time out within a scenario.
#[derive(Clone, Debug)]
pub struct LaneFile {
    endpoints: Vec<SocketAddr>,
    max_inflight: usize,
    max_queue: usize,
    queue_timeout: Duration,
    /// `None`: always.
    connect_hold: Option<Duration>,
    more: String,
}

impl LaneFile {
    /// A lane over a gateway's addresses.
    pub fn over(endpoints: &[SocketAddr]) -> Self {
        Self {
            endpoints: endpoints.to_vec(),
            max_inflight: 1,
            max_queue: 100,
            queue_timeout: Duration::from_secs(300),
            connect_hold: None,
            more: String::new(),
        }
    }

    /// `max_inflight`.
    #[must_use]
    pub fn limit(self, max_inflight: usize) -> Self {
        Self {
            max_inflight,
            ..self
        }
    }

    /// `max_queue`.
    #[must_use]
    pub fn queue(self, max_queue: usize) -> Self {
        Self { max_queue, ..self }
    }

    /// `queue_timeout`.
    #[must_use]
    pub fn timeout(self, queue_timeout: Duration) -> Self {
        Self {
            queue_timeout,
            ..self
        }
    }

    /// `connect_hold`: longer waits hold the request instead.
    #[must_use]
    pub fn connect_hold(self, connect_hold: Duration) -> Self {
        Self {
            connect_hold: Some(connect_hold),
            ..self
        }
    }

    /// One more line, or several. Tables go last.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.more.push_str(line);
        self.more.push('\n');
        self
    }

    /// The file's text.
    pub fn toml(&self) -> String {
        let endpoints: Vec<String> = self
            .endpoints
            .iter()
            .map(|endpoint| format!("\"{endpoint}\""))
            .collect();
        let connect_hold = match self.connect_hold {
            None => "always".to_owned(),
            Some(longest) => format!("{}ms", longest.as_millis()),
        };
        format!(
            "endpoints = [{}]\nmax_inflight = {}\nmax_queue = {}\nqueue_timeout = \"{}ms\"\n\
             connect_hold = \"{connect_hold}\"\n{}",
            endpoints.join(", "),
            self.max_inflight,
            self.max_queue,
            self.queue_timeout.as_millis(),
            self.more
        )
    }
}

impl From<LaneFile> for String {
    fn from(file: LaneFile) -> Self {
        file.toml()
    }
}
