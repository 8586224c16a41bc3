//! A lane for the examination's own connections: programs and maps that no controller shares.
//!
//! All that the examination asks of the kernel side is asked here.

use std::{io, net::SocketAddr, path::Path};

use shaper_common::{
    ABI_VERSION, CLASS_COUNT, CgroupClass, Class, Endpoint, EventKind, Lane, LaneMode, OnLoss,
    SlotWord,
};

use crate::{
    kernel::{
        self, CgroupRoot, ConnView, Events, KernelError, Loaded, Maps, Message, Namespaces,
        Programs, Tables, Trial, change_slots, id_of,
    },
    object::KERNEL_OBJECT,
};

/// The lane's index.
const LANE: u32 = 0;
/// Connection records: more than the examination has clients at a time.
const RECORDS: u32 = 8;
/// Requests in flight. No credits are minted, so that every connect is held.
const BUDGET: u32 = 1;
/// "No cap" in the kernel's words.
const NO_CAP: u32 = u32::MAX;

/// How a lane takes newcomers that find no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Open,
    /// Full from the start: every newcomer is refused with ECONNREFUSED.
    Full,
}

/// A loaded object with one lane. Dropping it detaches everything.
pub struct ScratchLane {
    programs: Programs,
    tables: Tables,
    events: Events,
    namespaces: Namespaces,
}

/// Tries each program by itself, in the order in which they are attached.
///
/// # Errors
/// When the maps cannot be made.
pub fn try_each() -> Result<Vec<Trial>, KernelError> {
    kernel::try_each(KERNEL_OBJECT)
}

impl ScratchLane {
    /// Loads the object and makes the lane.
    ///
    /// # Errors
    /// As [`kernel::load`].
    pub fn load() -> Result<Self, KernelError> {
        let Loaded {
            programs,
            mut tables,
            events,
            ..
        } = kernel::load(KERNEL_OBJECT, Maps::Own)?;
        for index in 0..RECORDS {
            tables.offer_record(index)?;
        }
        let globals = tables.globals();
        globals.abi_version.store(ABI_VERSION);
        // No heartbeat is needed then. If the examination is killed, its programs go with it.
        globals.on_loss.store(OnLoss::Closed as u32);
        let mut lane = Self {
            programs,
            tables,
            events,
            namespaces: Namespaces::default(),
        };
        lane.set_up();
        Ok(lane)
    }

    fn set_up(&mut self) {
        let lane = self.element();
        lane.barrier.store(CLASS_COUNT as u32);
        lane.max_queue.store(RECORDS);
        lane.refuse_errno.store(libc::ECONNREFUSED.unsigned_abs());
        for cap in &lane.class_cap {
            cap.store(NO_CAP);
        }
        change_slots(lane, |word| Some(word.with_budget(BUDGET)));
        lane.mode.store(LaneMode::Enforce as u32);
    }

    fn element(&self) -> &Lane {
        self.tables
            .lanes
            .get(LANE)
            .expect("the lane array is not empty")
    }

    /// Governs connects from `cgroup` to `endpoints`.
    ///
    /// # Errors
    /// When the programs cannot be attached there, or a map refuses.
    pub fn govern(
        &mut self,
        root: &CgroupRoot,
        cgroup: &Path,
        endpoints: impl Iterator<Item = SocketAddr>,
    ) -> Result<(), KernelError> {
        for endpoint in endpoints {
            let endpoint = Endpoint::host(endpoint.ip(), endpoint.port());
            self.tables.add_endpoint(&endpoint, LANE)?;
        }
        let class = CgroupClass {
            class: Class::Default as u32,
            level: root.level(cgroup),
        };
        self.tables.set_class(id_of(cgroup)?, class)?;
        self.programs.attach(cgroup)
    }

    pub fn set_queue(&self, queue: Queue) {
        let length = match queue {
            Queue::Open => RECORDS,
            Queue::Full => 0,
        };
        self.element().max_queue.store(length);
    }

    /// The connection that waits.
    pub fn waiter(&self) -> Option<ConnView> {
        self.tables.views().find(|view| view.gate().waits())
    }

    /// Whether the ring buffer has told of a held connect.
    pub fn has_told_of_a_held_connect(&mut self) -> bool {
        std::iter::from_fn(|| self.events.next())
            .any(|message| matches!(message, Message::Event(event) if event.kind == EventKind::Held as u32))
    }

    /// Enters the waiter's namespace and opens raw sockets there.
    ///
    /// # Errors
    /// As [`Namespaces::open`].
    pub fn enter_namespace(&mut self, waiter: &ConnView) -> io::Result<()> {
        self.namespaces
            .open(waiter.netns(), waiter.record.pid)
            .map(drop)
    }

    /// Opens the waiter's gate. `false`: it did not wait any more.
    pub fn admit(&self, waiter: &ConnView) -> bool {
        self.tables.admit(waiter.id, 0, kernel::now()).is_ok()
    }

    /// Sends the waiter's SYN again.
    ///
    /// # Errors
    /// Not permitted, or what the network says.
    pub fn replay(&mut self, waiter: &ConnView) -> io::Result<()> {
        let syn = waiter.nudge(kernel::now()).ok_or(io::ErrorKind::NotFound)?;
        let namespace = self.namespaces.open(waiter.netns(), waiter.record.pid)?;
        namespace.raw.send(&waiter.route(), &syn)
    }

    /// Ends the waiter's socket.
    ///
    /// # Errors
    /// `Unsupported`: this kernel cannot.
    pub fn destroy(&mut self, waiter: &ConnView) -> io::Result<()> {
        let namespace = self.namespaces.open(waiter.netns(), waiter.record.pid)?;
        namespace
            .diag
            .destroy(&waiter.route(), waiter.record.cookie)
    }

    /// Whether nothing is held and no slot is in use.
    pub fn is_idle(&self) -> bool {
        let word = SlotWord::from_bits(self.element().slots.load());
        word.slots() == 0
            && self.element().queued.load() == 0
            && self.tables.views().next().is_none()
    }
}
