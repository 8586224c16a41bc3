//! Connections to the lanes that are older than the controller: no program saw them connect, so no gate holds them.

use std::{
    collections::{HashMap, HashSet},
    io,
};

use tracing::{info, warn};

use super::{ClassCgroups, lanes::Lanes};
use crate::{
    kernel::{Tables, TcpSocket, diagnose_all, ids_below, processes_below},
    policy::LaneId,
};

/// Which of them are still there.
#[derive(Debug, Default)]
pub struct Preexisting {
    /// The lane of each, by the socket's cookie.
    lane_of: HashMap<u64, LaneId>,
}

impl Preexisting {
    /// Looks for them, once the programs are attached: what connects from then on has a record.
    pub fn find(classes: &ClassCgroups, lanes: &Lanes, tables: &Tables) -> Self {
        let sockets = match connected(classes) {
            Ok(sockets) => sockets,
            Err(error) => {
                warn!(%error, "connections from before the start cannot be listed: they pass uncounted");
                return Self::default();
            }
        };
        let governed: HashSet<u64> = tables.views().map(|view| view.record.cookie).collect();
        let paths = classes.paths();
        let class_cgroups = ids_below(&paths);
        let ungoverned = sockets.iter().filter(|socket| {
            (classes.all_of_the_host() || class_cgroups.contains(&socket.cgroup))
                && !governed.contains(&socket.cookie)
        });
        let found = Self {
            lane_of: ungoverned
                .filter_map(|socket| Some((socket.cookie, lane(socket, tables)?)))
                .collect(),
        };
        for (id, lane) in lanes.iter() {
            let connections = found.count(id);
            if connections > 0 {
                info!(
                    lane = lane.config.name,
                    connections,
                    "connections from before the start pass ungoverned until they close"
                );
            }
        }
        found
    }

    /// Forgets those that have closed. Asks the kernel only while there are any.
    pub fn refresh(&mut self, classes: &ClassCgroups) {
        if self.lane_of.is_empty() {
            return;
        }
        // After an error the old count is the better guess.
        if let Ok(sockets) = connected(classes) {
            let present: HashSet<u64> = sockets.iter().map(|socket| socket.cookie).collect();
            self.lane_of.retain(|cookie, _| present.contains(cookie));
        }
    }

    /// How many connections to a lane there are.
    pub fn count(&self, lane: LaneId) -> u32 {
        self.lane_of.values().filter(|of| **of == lane).count() as u32
    }
}

/// The connected sockets of the own network namespace and of those in which processes of the classes live.
fn connected(classes: &ClassCgroups) -> io::Result<Vec<TcpSocket>> {
    let mut sockets = Vec::new();
    for channel in diagnose_all(processes_below(&classes.paths()))? {
        sockets.extend(channel.connected()?);
    }
    Ok(sockets)
}

fn lane(socket: &TcpSocket, tables: &Tables) -> Option<LaneId> {
    let index = tables.lane_of(&socket.remote)?;
    u16::try_from(index).ok().map(LaneId)
}
