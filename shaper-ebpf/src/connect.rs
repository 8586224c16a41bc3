//! A process connects: does the address belong to a lane, and is there a slot?

use core::mem::offset_of;

use aya_ebpf::{
    EbpfContext,
    bindings::bpf_sock,
    helpers::{
        bpf_get_current_pid_tgid,
        generated::{bpf_get_netns_cookie, bpf_get_socket_cookie, bpf_set_retval},
    },
    maps::lpm_trie::Key,
    programs::SockAddrContext,
};
use shaper_common::{
    AccountKey, Counter, EndpointKey, Event, EventKind, Following, Gate, GateWord, LaneMode,
    Protocol, Tuple,
};

use crate::{
    access::{load_word, load_word_of},
    classify::{self, Standing},
    count::count,
    emit::{Urgency, emit, now_ns, send},
    maps::{ACCOUNT_INDEX, ENDPOINTS},
    presence, record,
    slot::{self, Bound, Decision, Purse},
    socket, udp,
};

pub const ALLOW: i32 = 1;
pub const DENY: i32 = 0;
const SOCK_STREAM: u32 = 1;
const SOCK_DGRAM: u32 = 2;
const IPPROTO_TCP: u32 = 6;

/// The address an IPv4 program was called for.
#[inline(always)]
pub fn endpoint_v4(ctx: &SockAddrContext) -> EndpointKey {
    // SAFETY: the context is valid for the run; these fields are readable here (`sock_addr_is_valid_access`).
    let (addr, port) = unsafe { ((*ctx.sock_addr).user_ip4, (*ctx.sock_addr).user_port) };
    EndpointKey::v4(reached_v4(ctx, addr.to_ne_bytes()), port_bytes(port))
}

const ANY_V4: [u8; 4] = [0; 4];
const LOOPBACK_V4: [u8; 4] = [127, 0, 0, 1];

/// Where a packet to `addr` goes: the unspecified address leads to the socket's own, and if it has none, to the loopback
/// address (`ip_route_output_key_hash_rcu`), after the connect programs have run (`tcp_v4_pre_connect`).
#[inline(always)]
fn reached_v4(ctx: &SockAddrContext, addr: [u8; 4]) -> [u8; 4] {
    if addr != ANY_V4 {
        return addr;
    }
    let own = load_word::<_, { offset_of!(bpf_sock, src_ip4) }>(socket(ctx)) as u32;
    match own.to_ne_bytes() {
        ANY_V4 => LOOPBACK_V4,
        own => own,
    }
}

/// The same for IPv6 (`tcp_v6_connect`, `__ip6_datagram_connect`): loopback, IPv4-mapped on a socket whose own address is.
#[inline(always)]
fn reached_v6(ctx: &SockAddrContext, words: [u32; 4]) -> [u8; 16] {
    const MAPPED: u32 = 0xffff_u32.to_be();
    let bytes = address_bytes(words);
    if words[0] != 0 || words[1] != 0 || words[3] != 0 {
        return bytes;
    }
    let mapped = |v4| EndpointKey::v4(v4, [0; 2]).addr;
    if words[2] == MAPPED {
        return mapped(reached_v4(ctx, ANY_V4));
    }
    if words[2] != 0 {
        return bytes;
    }
    let sk = socket(ctx);
    const OWN: usize = offset_of!(bpf_sock, src_ip6);
    if load_word_of::<_, OWN, 0>(sk) == 0
        && load_word_of::<_, OWN, 1>(sk) == 0
        && load_word_of::<_, OWN, 2>(sk) as u32 == MAPPED
    {
        return mapped(LOOPBACK_V4);
    }
    let mut loopback = [0; 16];
    loopback[15] = 1;
    loopback
}

/// The socket that connects or sends.
#[inline(always)]
fn socket(ctx: &SockAddrContext) -> *const bpf_sock {
    // SAFETY: as above; never null in these program types.
    unsafe { (*ctx.sock_addr).__bindgen_anon_1.sk }
}

/// The address an IPv6 program was called for.
#[inline(always)]
pub fn endpoint_v6(ctx: &SockAddrContext) -> EndpointKey {
    // SAFETY: as above. Word by word: the verifier allows no other access to this field.
    let (addr, port) = unsafe {
        let sa = ctx.sock_addr;
        let words = [
            (*sa).user_ip6[0],
            (*sa).user_ip6[1],
            (*sa).user_ip6[2],
            (*sa).user_ip6[3],
        ];
        (words, (*sa).user_port)
    };
    EndpointKey::v6(reached_v6(ctx, addr), port_bytes(port))
}

/// The context holds the port in network byte order in its lower half.
#[inline(always)]
fn port_bytes(port: u32) -> [u8; 2] {
    (port as u16).to_ne_bytes()
}

#[inline(always)]
pub fn address_bytes(words: [u32; 4]) -> [u8; 16] {
    // SAFETY: same size, no invalid values; both are network byte order in memory.
    unsafe { core::mem::transmute(words) }
}

/// Index of the lane that `endpoint` belongs to.
#[inline(always)]
pub fn lane_of(endpoint: EndpointKey) -> Option<u32> {
    ENDPOINTS
        .get(&Key::new(EndpointKey::FULL, endpoint))
        .copied()
}

/// A socket connects to `endpoint`.
#[inline(always)]
pub fn connect(ctx: &SockAddrContext, endpoint: EndpointKey) -> i32 {
    // SAFETY: as above.
    let (kind, protocol) = unsafe { ((*ctx.sock_addr).type_, (*ctx.sock_addr).protocol) };
    if kind == SOCK_DGRAM {
        return udp::datagram(ctx, endpoint);
    }
    if kind != SOCK_STREAM || protocol != IPPROTO_TCP {
        return ALLOW;
    }
    let Some(lane_index) = lane_of(endpoint) else {
        return ALLOW;
    };
    let Some(lane) = slot::lane(lane_index) else {
        return ALLOW;
    };
    // An endpoint that has outlived its lane: nobody would let a waiter go.
    if lane.mode.load() == LaneMode::Unused as u32 {
        return ALLOW;
    }
    if !presence::controller_present() {
        count(Counter::ControllerLost);
        return ALLOW;
    }
    let standing = classify::current();
    let purse = purse_of(lane_index, lane.account_caps.load() != 0, &standing);

    let sk = socket(ctx).cast_mut().cast();
    // SAFETY: a socket pointer from the context.
    if let Some(earlier) = unsafe { socket::governed(sk) } {
        // The socket connects again, after an attempt that failed before TCP began.
        record::close(earlier.conn(), earlier.id);
    }
    let Some(fresh) = record::allocate() else {
        count(Counter::TableFull);
        return ALLOW;
    };
    // SAFETY: a socket pointer from the context.
    let Some(tag) = (unsafe { socket::tag_or_create(sk) }) else {
        record::put_back(&fresh);
        count(Counter::NoStorage);
        return ALLOW;
    };

    let pid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let now = now_ns();
    // SAFETY: the record is ours alone until its gate is set.
    let conn = unsafe { &mut *fresh.conn };
    // SAFETY: both helpers take this context.
    unsafe {
        conn.cookie = bpf_get_socket_cookie(ctx.as_ptr());
        conn.netns = bpf_get_netns_cookie(ctx.as_ptr());
    }
    conn.account_cgroup = standing.account_cgroup;
    conn.since_ns = now;
    conn.admitted_ns.store(0);
    conn.released_ns.store(0);
    conn.established_ns = 0;
    conn.tx_ns = 0;
    conn.rx_ns = 0;
    conn.tx_bytes = 0;
    conn.rx_bytes = 0;
    conn.lane = lane_index;
    conn.class = standing.class as u32;
    conn.pid = pid;
    conn.account.store(if let Purse::Known(account) = purse {
        account + 1
    } else {
        0
    });
    conn.tuple = Tuple::default();
    conn.mark = 0;
    conn.ifindex = 0;
    conn.held_packets = 0;
    conn.tracked = 0;
    conn.request_ns = 0;
    conn.end_hint_ns = 0;
    conn.left_ns = 0;
    conn.response_end.store(0);
    conn.wake_window_ns = 0;
    conn.wake_used = 0;
    conn.passed_seq = 0;
    conn.handshake_seq = 0;
    conn.sent_long = 0;
    conn.head_request = 0;
    conn.protocol.store(Protocol::Unknown as u32);
    conn.tickets_until_ns = 0;
    conn.unsure_ns = 0;
    conn.rx_seq = 0;
    conn.answer_from = 0;
    conn.reset = 0;
    conn.told = 0;
    conn.following = Following::Request as u32;
    conn.held.len = 0;

    lane.connects[standing.class.index()].add(1);
    let (gate, kind) = match slot::decide(lane, standing.class, &purse, Bound::Queue) {
        Decision::Open => {
            conn.admitted_ns.store(now);
            conn.released_ns.store(now);
            (Gate::Open, EventKind::Opened)
        }
        Decision::Hold => (Gate::HeldSyn, EventKind::Held),
        Decision::Refuse(errno) => {
            record::put_back(&fresh);
            refuse(lane_index, &standing, pid, errno);
            return DENY;
        }
    };
    // SAFETY: checked for null by `tag_or_create`.
    unsafe { *tag = fresh.id };
    // The swap publishes everything above.
    conn.gate
        .swap(GateWord::new(fresh.id.generation, gate).bits());
    emit(
        kind,
        conn,
        fresh.id,
        0,
        Urgency::now_if(kind == EventKind::Held),
    );
    ALLOW
}

#[inline(always)]
fn purse_of(lane: u32, account_caps: bool, standing: &Standing) -> Purse {
    if !account_caps || standing.account_cgroup == 0 {
        return Purse::None;
    }
    let key = AccountKey {
        cgroup: standing.account_cgroup,
        lane,
        reserved: 0,
    };
    // SAFETY: the value is copied; the controller never changes an entry's value.
    match unsafe { ACCOUNT_INDEX.get(&key) } {
        Some(index) => Purse::Known(*index),
        None => Purse::Unknown,
    }
}

#[inline(always)]
fn refuse(lane: u32, standing: &Standing, pid: u32, errno: u32) {
    // SAFETY: no preconditions; the errno is between 1 and MAX_ERRNO, else the default (EPERM) stays.
    unsafe { bpf_set_retval(-(errno as i32)) };
    let event = Event {
        ns: now_ns(),
        account_cgroup: standing.account_cgroup,
        kind: EventKind::Refused as u32,
        lane,
        class: standing.class as u32,
        pid,
        index: 0,
        generation: 0,
        arg: errno,
        doubtful: 0,
    };
    send(&event, Urgency::Leisure);
}
