//! A lane's slots as a row of cells.

use shaper_common::Class;

use crate::snapshot::{LaneSnapshot, Mode};

/// What a cell stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    InUse(Class),
    /// Free for anybody.
    Free,
    /// Free for interactive work alone.
    Reserved,
}

/// The cells of a lane, at most `width`. A lane of more slots shows shares, and whatever there is one of has a cell.
pub fn cells(lane: &LaneSnapshot, width: usize) -> Vec<Slot> {
    let free = match lane.mode {
        Mode::Enforce => lane.effective_limit.saturating_sub(lane.inflight),
        // There is no limit that slots could be free of.
        Mode::Observe => 0,
    };
    let reserved = free.min(lane.reserve);
    let parts = Class::ALL
        .map(|class| {
            (
                Slot::InUse(class),
                *lane.inflight_by_priority.get(class) as usize,
            )
        })
        .into_iter()
        .chain([
            (Slot::Free, (free - reserved) as usize),
            (Slot::Reserved, reserved as usize),
        ]);
    let parts: Vec<(Slot, usize)> = parts.filter(|(_, count)| *count > 0).collect();
    let total: usize = parts.iter().map(|(_, count)| count).sum();
    if total <= width {
        return repeat(parts);
    }
    // One cell each, and the rest of the width by share: rounded where two parts meet, so that the sum is exact.
    let spare = width.saturating_sub(parts.len());
    let end = |counted: usize| (counted * spare + total / 2) / total;
    let mut counted = 0;
    let shares = parts.into_iter().map(|(slot, count)| {
        let from = end(counted);
        counted += count;
        (slot, 1 + end(counted) - from)
    });
    let mut cells = repeat(shares);
    cells.truncate(width);
    cells
}

fn repeat(parts: impl IntoIterator<Item = (Slot, usize)>) -> Vec<Slot> {
    parts
        .into_iter()
        .flat_map(|(slot, count)| std::iter::repeat_n(slot, count))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::snapshot::{ByClass, samples};

    fn lane(by_class: [u32; 3], limit: u32, reserve: u32) -> LaneSnapshot {
        LaneSnapshot {
            limit,
            effective_limit: limit,
            reserve,
            inflight: by_class.iter().sum(),
            inflight_by_priority: ByClass::from_fn(|class| by_class[class.index()]),
            ..samples::lane("reasoning")
        }
    }

    fn drawn(lane: &LaneSnapshot, width: usize) -> String {
        let letter = |slot: Slot| match slot {
            Slot::InUse(class) => class.name().chars().next().unwrap_or('?'),
            Slot::Free => '.',
            Slot::Reserved => 'r',
        };
        cells(lane, width).into_iter().map(letter).collect()
    }

    #[test]
    fn a_cell_is_a_slot_while_there_is_room() {
        assert_eq!(drawn(&lane([1, 0, 2], 8, 2), 12), "ibb...rr");
        assert_eq!(drawn(&lane([0, 0, 7], 8, 2), 12), "bbbbbbbr");
        assert_eq!(drawn(&lane([0, 0, 9], 8, 2), 12), "bbbbbbbbb");
    }

    #[test]
    fn many_slots_are_shown_as_shares() {
        assert_eq!(drawn(&lane([1, 0, 500], 1000, 1), 12), "ibbbbb.....r");
    }

    #[test]
    fn a_lane_that_observes_has_no_free_slots() {
        let observing = LaneSnapshot {
            mode: Mode::Observe,
            ..lane([1, 1, 0], 8, 0)
        };
        assert_eq!(drawn(&observing, 12), "id");
    }

    proptest! {
        #[test]
        fn nothing_is_hidden_and_nothing_overflows(
            by_class in prop::array::uniform3(0..5000_u32),
            limit in 0..9000_u32,
            reserve in 0..100_u32,
            width in 5..80_usize,
        ) {
            let lane = lane(by_class, limit, reserve);
            let cells = cells(&lane, width);
            prop_assert!(cells.len() <= width);
            for class in Class::ALL {
                let shown = cells.contains(&Slot::InUse(class));
                prop_assert_eq!(shown, by_class[class.index()] > 0);
            }
        }
    }
}
