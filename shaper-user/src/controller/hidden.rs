//! Sockets that look-ups by their addresses do not find: a process may bind its socket to an interface after the connect
//! (`sock_bindtoindex`, Linux 5.7), and needs no privilege for it.
//!
//! To find one takes a look at all sockets of its namespace, on the loop. So they are looked for together, and a few
//! namespaces at a time: no process can keep the loop busy with them.

use std::{collections::HashSet, mem};

use shaper_common::ConnId;

use super::Controller;
use crate::kernel::{ConnView, NetnsCookie};

/// Namespaces whose sockets are all looked at in one go: a look takes some milliseconds where there are many sockets on
/// the host.
const NAMESPACES: usize = 4;

/// Hidden sockets that are to be ended at the next heartbeat.
#[derive(Debug, Default)]
pub struct Hidden {
    to_end: Vec<ConnId>,
}

impl Hidden {
    /// A look-up did not find the socket of `id`, which still has its record.
    pub fn end_later(&mut self, id: ConnId) {
        self.to_end.push(id);
    }
}

impl Controller {
    /// Ends the hidden sockets that were to be ended, as many as one go allows.
    pub(super) fn end_hidden(&mut self) {
        let to_end = mem::take(&mut self.hidden.to_end);
        // The end of a socket frees its record at once.
        let views: Vec<_> = to_end
            .into_iter()
            .filter_map(|id| self.tables.view(id))
            .collect();
        let (batches, later) = in_one_go(views, ConnView::netns);
        self.hidden.to_end = later.into_iter().map(|view| view.id).collect();
        for batch in batches {
            let ended = self
                .namespaces
                .open(batch[0].netns(), batch[0].record.pid)
                .and_then(|namespace| namespace.diag.destroy_anywhere(&cookies(&batch)));
            self.tell_ended(ended);
        }
    }

    /// Those of one namespace's records whose sockets certainly exist no more, under whatever particulars. None if the
    /// namespace cannot be asked.
    pub(super) fn gone_for_certain(&mut self, batch: Vec<ConnView>) -> Vec<ConnView> {
        let existing = self
            .namespaces
            .open(batch[0].netns(), batch[0].record.pid)
            .and_then(|namespace| namespace.diag.exist_anywhere(&cookies(&batch)));
        match existing {
            Ok(existing) => batch
                .into_iter()
                .filter(|view| !existing.contains(&view.record.cookie))
                .collect(),
            Err(_) => Vec::new(),
        }
    }
}

pub(super) fn cookies(batch: &[ConnView]) -> HashSet<u64> {
    batch.iter().map(|view| view.record.cookie).collect()
}

/// What may be looked for in one go, by namespace, none of them empty; and what is left for the next. Who comes first is
/// looked for first.
pub(super) fn in_one_go<T>(
    sought: Vec<T>,
    netns: impl Fn(&T) -> NetnsCookie,
) -> (Vec<Vec<T>>, Vec<T>) {
    let mut batches: Vec<Vec<T>> = Vec::new();
    let mut later = Vec::new();
    for one in sought {
        let present = batches
            .iter()
            .position(|batch| netns(&batch[0]) == netns(&one));
        match present {
            Some(at) => batches[at].push(one),
            None if batches.len() < NAMESPACES => batches.push(vec![one]),
            None => later.push(one),
        }
    }
    (batches, later)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A22: however many sockets hide, all of a namespace cost one look, and those of too many namespaces wait.
    #[test]
    fn hidden_sockets_cost_one_look_for_each_of_a_few_namespaces() {
        let few = NAMESPACES as u64;
        let sought: Vec<u64> = (0..1000 * (few + 1)).collect();
        let netns = |number: &u64| NetnsCookie(number % (few + 1));
        let (batches, later) = in_one_go(sought, netns);
        assert_eq!(batches.len(), NAMESPACES);
        assert!(batches.iter().all(|batch| batch.len() == 1000));
        assert_eq!(later.len(), 1000);
        let (batches, later) = in_one_go(later, netns);
        assert_eq!((batches.len(), later.len()), (1, 0));
    }
}
