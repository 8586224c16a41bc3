//! A name server's answer reaches a socket: addresses of followed names belong to their lanes before the process has seen
//! them, so that the first connect is governed.
//!
//! Believed is only an answer on a socket of the controller's own network namespace, from the address of a name server of
//! the host, to a socket that has asked it. To make one up there takes CAP_NET_RAW, port 53 of that address (for which
//! `ip_unprivileged_port_start` asks CAP_NET_BIND_SERVICE), or a guess of the asker's port; in a namespace of its own every
//! process could.

use core::{ffi::c_void, ptr};

use aya_ebpf::{
    EbpfContext,
    bindings::BPF_NOEXIST,
    helpers::generated::{bpf_get_netns_cookie, bpf_loop, bpf_skb_load_bytes},
    maps::lpm_trie::Key,
    programs::{SkBuffContext, SockAddrContext},
};
use shaper_common::{
    EndpointKey, Family, Followed, Found, FromNameServer, LearntKey, MAX_LEARNT, MAX_TARGETS,
    NAME_CAPACITY, NAME_SERVER_PORT, SharedU32, Target, Walk, WireName,
};

use crate::{
    access::{opaque, within},
    connect::lane_of,
    emit::now_ns,
    maps::{ASKERS, DNS_SCRATCH, ENDPOINTS, FOLLOWED, GLOBALS, LEARNT, NAME_SERVERS},
    packet, socket,
};

/// Bytes of a message that are read, a power of two: more than fit into a datagram of any common MTU.
const MESSAGE_CAPACITY: usize = 2048;
const HEADER: u32 = 12;

/// Steps to the end of the question: one for each byte of its name.
const QUESTION_STEPS: u32 = NAME_CAPACITY as u32;
/// Steps through the records: enough for a chain of four long aliases and sixteen addresses.
const RECORD_STEPS: u32 = 512;

/// Addresses taken from one answer, a power of two.
const MAX_ADDRESSES: usize = 16;

/// Where a message is read: too large for a program's stack.
#[repr(C)]
pub struct Scratch {
    message: [u8; MESSAGE_CAPACITY],
    /// Bytes of it.
    length: u32,
    /// Nonzero: the question has been read, and its name is `name`.
    asked: u32,
    name: WireName,
    walk: Walk,
    /// Where the addresses are in the message; an IPv6 one's place has [`IS_V6`].
    places: [u32; MAX_ADDRESSES],
    place_count: u32,
    /// Those that are new, IPv4 ones mapped.
    new: [[u8; 16]; MAX_ADDRESSES],
    new_count: u32,
}

const IS_V6: u32 = 1 << 31;

/// Whether any name is followed.
#[inline(always)]
fn trusted_netns() -> u64 {
    GLOBALS.get(0).map_or(0, |globals| globals.dns_netns.load())
}

/// A datagram socket connects or sends to `endpoint`: if that is a name server, its answers count.
#[inline(always)]
pub fn asks(ctx: &SockAddrContext, endpoint: &EndpointKey) {
    let netns = trusted_netns();
    if netns == 0 || endpoint.port != NAME_SERVER_PORT.to_be_bytes() {
        return;
    }
    // SAFETY: the value is not looked at.
    if unsafe { NAME_SERVERS.get(&endpoint.addr) }.is_none() {
        return;
    }
    // SAFETY: the helper takes this context.
    if unsafe { bpf_get_netns_cookie(ctx.as_ptr()) } != netns {
        return;
    }
    // SAFETY: the field is the socket that sends; never null in this program type.
    let sk = unsafe { (*ctx.sock_addr).__bindgen_anon_1.sk }.cast();
    // Without memory for it the answer is not followed, no more.
    // SAFETY: a socket pointer from the context.
    let _ = unsafe { socket::storage_or_create(&ASKERS, sk) };
}

/// A packet reaches a socket that is not governed.
#[inline(always)]
pub fn packet(ctx: &SkBuffContext) {
    if trusted_netns() == 0 {
        return;
    }
    let Some(datagram) = FromNameServer::parse(packet::bytes(ctx)) else {
        return;
    };
    if !is_believed(ctx, &datagram) {
        return;
    }
    let Some(scratch) = DNS_SCRATCH.get_ptr_mut(0) else {
        return;
    };
    let length = ctx.len().saturating_sub(datagram.payload_offset);
    let length = length.min(MESSAGE_CAPACITY as u32);
    let Some(length) = within::<HEADER, { MESSAGE_CAPACITY as u32 }>(length) else {
        return;
    };
    // SAFETY: this CPU's element, of which ingress programs, one at a time in softirq context, are the only users; `length`
    // bytes fit into the message.
    let read = unsafe {
        let to = (&raw mut (*scratch).message).cast();
        bpf_skb_load_bytes(ctx.as_ptr(), datagram.payload_offset, to, length)
    };
    if read != 0 {
        return;
    }
    let Some(followed) = walk(scratch, length) else {
        return;
    };
    // SAFETY: as above; and a map's value, which stays readable for the run.
    let (scratch, followed) = unsafe { (&mut *scratch, &*followed) };
    learn(ctx, &datagram, followed, scratch);
    assign(followed, scratch);
}

#[inline(always)]
fn is_believed(ctx: &SkBuffContext, datagram: &FromNameServer) -> bool {
    let sk = packet::sk(ctx);
    // SAFETY: a socket pointer from the context.
    if sk.is_null() || unsafe { socket::storage(&ASKERS, sk) }.is_none() {
        return false;
    }
    // The source address (RFC 791, 3.1; RFC 8200, 3).
    let source = match datagram.family {
        Family::V4 => packet::load::<4>(ctx, 12).map(|v4| EndpointKey::v4(v4, [0; 2]).addr),
        Family::V6 => packet::load::<16>(ctx, 8),
    };
    // SAFETY: the value is not looked at.
    source.is_some_and(|source| unsafe { NAME_SERVERS.get(&source) }.is_some())
}

/// Walks the message to its end, or as far as is allowed. `None`: it is no answer about a followed name.
#[inline(always)]
fn walk(memory: *mut Scratch, length: u32) -> Option<*mut Followed> {
    // SAFETY: as in `packet`. Not referred to while steps are taken, for then it is `step` that does.
    let scratch = unsafe { &mut *memory };
    scratch.length = length;
    scratch.asked = 0;
    scratch.place_count = 0;
    scratch.name = [0; NAME_CAPACITY];
    scratch.walk = Walk::begin(bytes(&scratch.message, length))?;
    steps(QUESTION_STEPS);
    // SAFETY: as above.
    let scratch = unsafe { &*memory };
    if scratch.asked == 0 {
        return None;
    }
    let followed = FOLLOWED.get_ptr_mut(&scratch.name)?;
    steps(RECORD_STEPS);
    Some(followed)
}

/// Goes at most `count` steps. By `bpf_loop` (Linux 5.17), so that the verifier looks at one step and not at all the ways
/// through hundreds of them.
#[inline(always)]
fn steps(count: u32) {
    // SAFETY: the callback is a function of this program, and has no use for a context.
    unsafe { bpf_loop(count, step as *mut c_void, ptr::null_mut(), 0) };
}

/// One step through the message in this CPU's scratch memory. Not 0: no more of them.
#[inline(never)]
extern "C" fn step(_: u32, _: *mut c_void) -> i64 {
    let Some(scratch) = DNS_SCRATCH.get_ptr_mut(0) else {
        return 1;
    };
    // SAFETY: as in `packet`, and nobody else refers to it meanwhile.
    let scratch = unsafe { &mut *scratch };
    let byte = bytes(&scratch.message, scratch.length);
    match scratch.walk.step(byte, &mut scratch.name) {
        Found::Nothing => 0,
        Found::Question => {
            scratch.asked = 1;
            1
        }
        Found::Address(family, at) => {
            let place = if family == Family::V6 { at | IS_V6 } else { at };
            let count = scratch.place_count;
            scratch.places[opaque(count) as usize & (MAX_ADDRESSES - 1)] = place;
            scratch.place_count = count + 1;
            0
        }
        Found::End => 1,
    }
}

#[inline(always)]
fn bytes(message: &[u8; MESSAGE_CAPACITY], length: u32) -> impl Fn(u32) -> Option<u8> + '_ {
    move |at| {
        if at >= length {
            return None;
        }
        Some(message[opaque(at) as usize & (MESSAGE_CAPACITY - 1)])
    }
}

/// Notes the addresses of the name, and which of them are new.
#[inline(always)]
fn learn(
    ctx: &SkBuffContext,
    datagram: &FromNameServer,
    followed: &Followed,
    scratch: &mut Scratch,
) {
    scratch.new_count = 0;
    for index in 0..MAX_ADDRESSES {
        if index as u32 >= scratch.place_count {
            break;
        }
        let place = scratch.places[index];
        let at = datagram.payload_offset + (place & !IS_V6);
        let addr = if place & IS_V6 == 0 {
            packet::load::<4>(ctx, at).map(|v4| EndpointKey::v4(v4, [0; 2]).addr)
        } else {
            packet::load::<16>(ctx, at)
        };
        let Some(addr) = addr else { continue };
        if is_new(followed, addr) {
            let count = scratch.new_count;
            scratch.new[opaque(count) as usize & (MAX_ADDRESSES - 1)] = addr;
            scratch.new_count = count + 1;
        }
    }
}

/// Whether no answer has given the name this address before, and there is room for it.
#[inline(always)]
fn is_new(followed: &Followed, addr: [u8; 16]) -> bool {
    let key = LearntKey {
        name: followed.name,
        addr,
    };
    let now = now_ns();
    if let Some(seen) = LEARNT.get_ptr_mut(&key) {
        // SAFETY: a map's value; one aligned word, and any of several times will do.
        unsafe { seen.write_volatile(now) };
        return false;
    }
    // SAFETY: a word that kernel programs change by atomic operations alone; the controller replaces the whole value.
    let room = unsafe { &*(&raw const followed.room).cast::<SharedU32>() };
    // Two programs at once may take one too many: then it has wrapped.
    if room.load().wrapping_sub(1) >= MAX_LEARNT {
        return false;
    }
    room.sub(1);
    LEARNT.insert(&key, &now, BPF_NOEXIST.into()).is_ok()
}

/// Gives the new addresses to the lanes of the name, unless they belong to one: which of two claims counts is the
/// controller's to decide.
#[inline(always)]
fn assign(followed: &Followed, scratch: &Scratch) {
    for index in 0..MAX_ADDRESSES * MAX_TARGETS {
        let (address, target) = (index / MAX_TARGETS, index % MAX_TARGETS);
        if address as u32 >= scratch.new_count {
            break;
        }
        let target = &followed.targets[target];
        let endpoint = EndpointKey::v6(scratch.new[address], target.port);
        if target.lane == Target::NONE.lane || lane_of(endpoint).is_some() {
            continue;
        }
        // Full: the controller, which reads what has been learnt, will say so. Before Linux 6.13 the flag is ignored
        // (`trie_update_elem`), hence the look-up.
        let key = Key::new(EndpointKey::FULL, endpoint);
        let _ = ENDPOINTS.insert(&key, &target.lane, BPF_NOEXIST.into());
    }
}
