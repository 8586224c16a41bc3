//! BPF arrays mapped into the controller's memory.

use std::{io, os::fd::AsFd, ptr::NonNull};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use shaper_common::{Account, Conn, Globals, Lane, SharedU32, SharedU64};

/// A memory-mapped BPF array (`BPF_F_MMAPABLE`, Linux 5.5) of `T`.
///
/// Memory that the kernel writes at any moment: Rust may have references to its atomic words and to nothing else. Where
/// an element has nothing else ([`Words`]), that is the element; of a [`Conn`] they are [`ConnWords`]. Plain fields
/// are read from a [copy](SharedArray::copy).
#[derive(Debug)]
pub struct SharedArray<T> {
    base: NonNull<T>,
    len: usize,
}

// SAFETY: the mapping is valid until drop, and access is atomic or volatile.
unsafe impl<T: Sync> Send for SharedArray<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for SharedArray<T> {}

/// An element all of whose fields are words that change only by atomic operations, or never.
///
/// # Safety
/// As said: a reference to a plain field that the kernel writes is undefined behaviour.
pub unsafe trait Words {}

// SAFETY: all fields are shared words, but for ones that nobody writes.
unsafe impl Words for Lane {}
// SAFETY: all fields are shared words.
unsafe impl Words for Account {}
// SAFETY: all fields are shared words.
unsafe impl Words for Globals {}

/// The words of a connection record.
#[derive(Clone, Copy, Debug)]
pub struct ConnWords<'a> {
    pub gate: &'a SharedU64,
    pub admitted_ns: &'a SharedU64,
    pub released_ns: &'a SharedU64,
    pub response_end: &'a SharedU64,
    pub account: &'a SharedU32,
    pub protocol: &'a SharedU32,
    pub held_version: &'a SharedU32,
}

impl<T> SharedArray<T> {
    /// Maps all `len` elements of the array behind `map`.
    ///
    /// # Errors
    /// What `mmap` says: EPERM for an array without the flag, ENOMEM.
    pub fn map(map: impl AsFd, len: u32) -> io::Result<Self> {
        let len = len as usize;
        // The kernel stores elements at a stride of their size rounded up to 8 (`array_map_alloc`).
        assert_eq!(
            size_of::<T>() % 8,
            0,
            "elements must be laid out without gaps"
        );
        let bytes = NonZeroBytes::of::<T>(len)?;
        // SAFETY: a fresh mapping of a file descriptor that is a BPF array of at least this size; the kernel refuses
        // a larger one.
        let base = unsafe {
            mmap(
                None,
                bytes.0,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                map,
                0,
            )?
        };
        Ok(Self {
            base: base.cast(),
            len,
        })
    }

    pub fn len(&self) -> u32 {
        self.len as u32
    }

    /// A private copy of the element at `index`, taken while the kernel may be writing it: fields can be of different
    /// moments, and callers check what tells users of an element apart before and after.
    pub fn copy(&self, index: u32) -> Option<T> {
        // SAFETY: in bounds; `T` is plain data of which every bit pattern is valid. Volatile, so that each call reads
        // memory.
        self.at(index)
            .map(|element| unsafe { element.as_ptr().read_volatile() })
    }

    fn at(&self, index: u32) -> Option<NonNull<T>> {
        // SAFETY: in bounds.
        self.contains(index)
            .then(|| unsafe { self.base.add(index as usize) })
    }

    fn contains(&self, index: u32) -> bool {
        (index as usize) < self.len
    }
}

impl<T: Words> SharedArray<T> {
    /// The element at `index`.
    pub fn get(&self, index: u32) -> Option<&T> {
        // SAFETY: in bounds, alive as long as `self`, and nothing in it changes but atomically.
        self.at(index).map(|element| unsafe { element.as_ref() })
    }

    /// All elements.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..self.len()).filter_map(|index| Some((index, self.get(index)?)))
    }
}

impl SharedArray<Conn> {
    /// The words of the record at `index`.
    pub fn get(&self, index: u32) -> Option<ConnWords<'_>> {
        let conn = self.at(index)?.as_ptr();
        // SAFETY: in bounds and alive as long as `self`; the plain fields are not referred to.
        Some(unsafe {
            ConnWords {
                gate: &(*conn).gate,
                admitted_ns: &(*conn).admitted_ns,
                released_ns: &(*conn).released_ns,
                response_end: &(*conn).response_end,
                account: &(*conn).account,
                protocol: &(*conn).protocol,
                held_version: &(*conn).held.version,
            }
        })
    }
}

impl<T> Drop for SharedArray<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, not used after this.
        let _ = unsafe { munmap(self.base.cast(), self.len * size_of::<T>()) };
    }
}

struct NonZeroBytes(std::num::NonZeroUsize);

impl NonZeroBytes {
    fn of<T>(len: usize) -> io::Result<Self> {
        std::num::NonZeroUsize::new(len * size_of::<T>())
            .map(Self)
            .ok_or(io::ErrorKind::InvalidInput.into())
    }
}
