//! Reading the ring buffer.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

use aya::maps::{MapData, RingBuf};
use shaper_common::{Event, Glimpse, RING_BYTES};

/// One record of the ring.
#[derive(Clone, Debug)]
pub enum Message {
    Event(Event),
    Glimpse(Box<Glimpse>),
}

/// The consumer's side of the event ring.
pub struct Events {
    ring: RingBuf<MapData>,
    taken: u64,
    #[cfg(debug_assertions)]
    faults: super::faults::Faults,
}

impl Events {
    pub(super) fn new(ring: RingBuf<MapData>) -> Self {
        Self {
            ring,
            taken: 0,
            #[cfg(debug_assertions)]
            faults: super::faults::Faults::from_environment(),
        }
    }

    /// How many records have been taken out of the ring.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Throws away what is in the ring: news to a controller that is gone. No more than fits into it, for more may come
    /// all the time.
    pub fn discard(&mut self) {
        const MOST: usize = RING_BYTES as usize / size_of::<Event>();
        for _ in 0..MOST {
            if self.ring.next().is_none() {
                return;
            }
        }
    }

    /// A descriptor for epoll: readable when the kernel asked for attention.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn attention(&self) -> io::Result<OwnedFd> {
        // SAFETY: the ring keeps its descriptor open for the call.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }.try_clone_to_owned()
    }
}

impl Iterator for Events {
    type Item = Message;

    /// The next message; `None` when the ring is empty.
    fn next(&mut self) -> Option<Message> {
        let (ring, taken) = (&mut self.ring, &mut self.taken);
        #[cfg(debug_assertions)]
        return self.faults.next(|| read(ring, taken));
        #[cfg(not(debug_assertions))]
        read(ring, taken)
    }
}

fn read(ring: &mut RingBuf<MapData>, taken: &mut u64) -> Option<Message> {
    loop {
        let item = ring.next()?;
        *taken += 1;
        // SAFETY: in both cases long enough, and every bit pattern is a valid value.
        unsafe {
            if item.len() >= size_of::<Glimpse>() {
                let glimpse = item.as_ptr().cast::<Glimpse>().read_unaligned();
                return Some(Message::Glimpse(Box::new(glimpse)));
            }
            if item.len() >= size_of::<Event>() {
                return Some(Message::Event(
                    item.as_ptr().cast::<Event>().read_unaligned(),
                ));
            }
        }
    }
}
