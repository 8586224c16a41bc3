//! From a socket to its record, through socket storage.

use core::{ffi::c_void, ptr};

use aya_ebpf::{
    bindings::BPF_SK_STORAGE_GET_F_CREATE, btf_maps::SkStorage,
    helpers::generated::bpf_sk_storage_get,
};
use shaper_common::{Conn, ConnId, Gate, GateWord};

use crate::maps::{CONNS, SOCKETS};

/// A record in use by a socket, as it was a moment ago.
pub struct Governed {
    pub conn: *mut Conn,
    pub id: ConnId,
    pub word: GateWord,
}

impl Governed {
    /// The record for fields that are shared or not written any more.
    #[inline(always)]
    pub fn conn(&self) -> &Conn {
        // SAFETY: points into the array map, which lives as long as the program.
        unsafe { &*self.conn }
    }
}

/// The record of `sk`, if it has one and the record still belongs to it.
///
/// # Safety
/// `sk` must be a context or socket pointer that the calling program type may pass to `bpf_sk_storage_get`.
#[inline(always)]
pub unsafe fn governed(sk: *mut c_void) -> Option<Governed> {
    // SAFETY: as promised by the caller.
    let tag = unsafe { storage(&SOCKETS, sk) }?;
    // SAFETY: checked for null; socket storage outlives the program's run.
    let id = unsafe { *tag };
    let conn = CONNS.get_ptr_mut(id.index)?;
    // SAFETY: points into the array map.
    let word = GateWord::from_bits(unsafe { &(*conn).gate }.load());
    if word.generation() != id.generation || word.gate() == Gate::Free {
        return None;
    }
    Some(Governed { conn, id, word })
}

/// The tag of `sk`, made if absent. `None` when there is no memory for it.
///
/// # Safety
/// As for [`governed`].
#[inline(always)]
pub unsafe fn tag_or_create(sk: *mut c_void) -> Option<*mut ConnId> {
    // SAFETY: as promised by the caller.
    unsafe { storage_or_create(&SOCKETS, sk) }
}

/// What `sk` has in `map`, if anything.
///
/// # Safety
/// As for [`governed`].
#[inline(always)]
pub unsafe fn storage<T>(map: &SkStorage<T>, sk: *mut c_void) -> Option<*mut T> {
    // SAFETY: as promised by the caller.
    unsafe { storage_with(map, sk, 0) }
}

/// The same, made if absent. `None` when there is no memory for it.
///
/// # Safety
/// As for [`governed`].
#[inline(always)]
pub unsafe fn storage_or_create<T>(map: &SkStorage<T>, sk: *mut c_void) -> Option<*mut T> {
    // SAFETY: as promised by the caller.
    unsafe { storage_with(map, sk, u64::from(BPF_SK_STORAGE_GET_F_CREATE)) }
}

#[inline(always)]
unsafe fn storage_with<T>(map: &SkStorage<T>, sk: *mut c_void, flags: u64) -> Option<*mut T> {
    let map = ptr::from_ref(map).cast_mut().cast();
    // SAFETY: as promised by the callers.
    let value = unsafe { bpf_sk_storage_get(map, sk, ptr::null_mut(), flags) }.cast::<T>();
    if value.is_null() { None } else { Some(value) }
}
