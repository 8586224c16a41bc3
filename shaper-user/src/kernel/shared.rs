//! BPF arrays mapped into the controller's memory.

use std::{io, os::fd::AsFd, ptr::NonNull};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// A memory-mapped BPF array (`BPF_F_MMAPABLE`, Linux 5.5) of `T`.
///
/// `T` is an ABI type whose concurrently written fields are atomic words, so shared references to elements are sound
/// while the kernel writes them. Plain fields that only the kernel writes are read from a [copy](SharedArray::copy).
#[derive(Debug)]
pub struct SharedArray<T> {
    base: NonNull<T>,
    len: usize,
}

// SAFETY: the mapping is valid until drop, and access is atomic or volatile.
unsafe impl<T: Sync> Send for SharedArray<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for SharedArray<T> {}

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

    /// The element at `index`, for its atomic fields.
    pub fn get(&self, index: u32) -> Option<&T> {
        self.contains(index).then(|| {
            // SAFETY: in bounds; the mapping lives as long as `self`.
            unsafe { self.base.add(index as usize).as_ref() }
        })
    }

    /// A private copy of the element at `index`, taken while the kernel may be writing it: fields can be of different
    /// moments, and callers check what tells users of an element apart before and after.
    pub fn copy(&self, index: u32) -> Option<T> {
        self.contains(index).then(|| {
            // SAFETY: in bounds; `T` is plain data of which every bit pattern is valid. Volatile, so that each call
            // reads memory.
            unsafe { self.base.add(index as usize).as_ptr().read_volatile() }
        })
    }

    /// All elements, for their atomic fields.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..self.len()).filter_map(|index| Some((index, self.get(index)?)))
    }

    fn contains(&self, index: u32) -> bool {
        (index as usize) < self.len
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
