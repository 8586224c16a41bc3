//! An array map in memory, found by its id: for what is too much for `bpftool`, and for changes behind the controller's
//! back.

use std::ffi::c_long;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use anyhow::{Context, Result};
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// The elements of one map.
#[derive(Debug)]
pub struct MapMemory {
    base: NonNull<u8>,
    element: usize,
    len: u32,
}

impl MapMemory {
    /// Maps `len` elements of `element` bytes each, a multiple of eight.
    pub fn of(id: u32, element: usize, len: u32) -> Result<Self> {
        let map = open(id).with_context(|| format!("cannot open map {id}"))?;
        let bytes = NonZeroUsize::new(element * len as usize).context("an empty map")?;
        // SAFETY: a fresh mapping; the kernel refuses one that is longer than the map.
        let base = unsafe {
            mmap(
                None,
                bytes,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                &map,
                0,
            )
        };
        Ok(Self {
            base: base.with_context(|| format!("cannot map map {id}"))?.cast(),
            element,
            len,
        })
    }

    /// A word of an element.
    pub fn u32(&self, index: u32, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping, aligned, and nobody accesses it but atomically.
        unsafe { AtomicU32::from_ptr(self.at(index, offset, size_of::<u32>()).cast()) }
    }

    /// A double word of an element.
    pub fn u64(&self, index: u32, offset: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.at(index, offset, size_of::<u64>()).cast()) }
    }

    fn at(&self, index: u32, offset: usize, size: usize) -> *mut u8 {
        let inside =
            index < self.len && offset + size <= self.element && offset.is_multiple_of(size);
        assert!(inside, "no word at {offset} of element {index}");
        // SAFETY: just checked.
        unsafe {
            self.base
                .as_ptr()
                .add(index as usize * self.element + offset)
        }
    }
}

impl Drop for MapMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `of`, not used after this.
        let _ = unsafe { munmap(self.base.cast(), self.element * self.len as usize) };
    }
}

fn open(id: u32) -> io::Result<OwnedFd> {
    /// Of `enum bpf_cmd`.
    const BPF_MAP_GET_FD_BY_ID: c_long = 14;
    /// The part of `union bpf_attr` that this command reads.
    #[repr(C)]
    struct Attributes {
        map_id: u32,
        next_id: u32,
        open_flags: u32,
    }
    let attributes = Attributes {
        map_id: id,
        next_id: 0,
        open_flags: 0,
    };
    // SAFETY: the structure lives for the call and is as long as said.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_MAP_GET_FD_BY_ID,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
