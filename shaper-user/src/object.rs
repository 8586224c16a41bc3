//! The kernel object, as built from `shaper-ebpf`.

/// ELF, for the loader.
pub static KERNEL_OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/shaper.bpf.o"));
