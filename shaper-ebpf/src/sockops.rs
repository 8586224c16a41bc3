//! TCP's own callbacks: the SYN is about to leave, the handshake is complete, the state changes.

use core::mem::offset_of;

use aya_ebpf::{
    EbpfContext,
    bindings::{
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_STATE_CB_FLAG,
        BPF_SOCK_OPS_TCP_CONNECT_CB, bpf_sock,
    },
    helpers::generated::{bpf_setsockopt, bpf_sock_ops_cb_flags_set},
    programs::SockOpsContext,
};
use shaper_common::{Conn, Counter, EndpointKey, EventKind, Failure, Gate, Tuple};

use crate::{
    access::{load_word, load_word_of},
    connect::{address_bytes, lane_of},
    count::count,
    emit::{Urgency, emit, micros_between, now_ns},
    presence::controller_present,
    record,
    socket::{self, Governed},
};

/// The kernel ignores the return value for the callbacks used here.
const DONE: u32 = 1;

const AF_INET6: u32 = 10;
const SOL_TCP: i32 = 6;
const TCP_SYNCNT: i32 = 7;
/// Of include/uapi/linux/bpf.h.
const TCP_BPF_IW: i32 = 1001;

/// `MAX_TCP_SYNCNT`: a held SYN must not end the connection before the queue timeout does.
const SYN_RETRIES: i32 = 127;
/// `TCP_INIT_CWND`, RFC 6928.
const INITIAL_WINDOW: i32 = 10;

const TCP_CLOSE_WAIT: u32 = 8;
const TCP_CLOSE: u32 = 7;

#[inline(always)]
pub fn operation(ctx: &SockOpsContext) -> u32 {
    let op = ctx.op();
    if op != BPF_SOCK_OPS_TCP_CONNECT_CB
        && op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB
        && op != BPF_SOCK_OPS_STATE_CB
    {
        return DONE;
    }
    // SAFETY: the context is valid for the run.
    let sk = unsafe { (*ctx.ops).__bindgen_anon_2.sk };
    if sk.is_null() {
        return DONE;
    }
    // SAFETY: a socket pointer from the context, not null.
    let Some(governed) = (unsafe { socket::governed(sk.cast()) }) else {
        if op == BPF_SOCK_OPS_TCP_CONNECT_CB {
            unseen(sk);
        }
        return DONE;
    };
    match op {
        BPF_SOCK_OPS_TCP_CONNECT_CB => connecting(ctx, sk, &governed),
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => established(ctx, &governed),
        _ => state_change(ctx.arg(1), &governed),
    }
    DONE
}

/// `tcp_connect`: the addresses are bound, the SYN is not yet built.
#[inline(always)]
fn connecting(ctx: &SockOpsContext, sk: *const bpf_sock, governed: &Governed) {
    // SAFETY: points into the array map; the socket is locked by its `connect`.
    let conn = unsafe { &mut *governed.conn };
    conn.tuple = tuple(sk);
    conn.mark = load_word::<_, { offset_of!(bpf_sock, mark) }>(sk) as u32;
    conn.ifindex = load_word::<_, { offset_of!(bpf_sock, bound_dev_if) }>(sk) as u32;
    // SAFETY: `ctx.ops` is the context.
    unsafe {
        // Other programs may have asked for callbacks too: the helper assigns.
        let flags = (*ctx.ops).bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG;
        if bpf_sock_ops_cb_flags_set(ctx.ops, flags as i32) == 0 {
            conn.tracked = 1;
        }
    }
    if governed.word.gate() == Gate::HeldSyn {
        set_option(ctx, TCP_SYNCNT, SYN_RETRIES);
    }
}

/// Addresses as the socket has them. IPv4 shows in `src_ip4` also on an IPv6 socket with an IPv4-mapped peer.
#[inline(always)]
fn tuple(sk: *const bpf_sock) -> Tuple {
    // `dst_port` is network byte order in the lower half of its word (`bpf_sock_convert_ctx_access`).
    let local_port = load_word::<_, { offset_of!(bpf_sock, src_port) }>(sk) as u16;
    let remote_port = u16::from_be(load_word::<_, { offset_of!(bpf_sock, dst_port) }>(sk) as u16);
    let (local, remote);
    if load_word::<_, { offset_of!(bpf_sock, family) }>(sk) as u32 == AF_INET6 {
        local = ip6::<{ offset_of!(bpf_sock, src_ip6) }>(sk);
        remote = ip6::<{ offset_of!(bpf_sock, dst_ip6) }>(sk);
    } else {
        local = ip4::<{ offset_of!(bpf_sock, src_ip4) }>(sk);
        remote = ip4::<{ offset_of!(bpf_sock, dst_ip4) }>(sk);
    }
    Tuple {
        local,
        remote,
        local_port,
        remote_port,
    }
}

#[inline(always)]
fn ip4<const OFFSET: usize>(sk: *const bpf_sock) -> [u8; 16] {
    let addr = load_word::<_, OFFSET>(sk) as u32;
    EndpointKey::v4(addr.to_ne_bytes(), [0; 2]).addr
}

#[inline(always)]
fn ip6<const OFFSET: usize>(sk: *const bpf_sock) -> [u8; 16] {
    address_bytes([
        load_word_of::<_, OFFSET, 0>(sk) as u32,
        load_word_of::<_, OFFSET, 1>(sk) as u32,
        load_word_of::<_, OFFSET, 2>(sk) as u32,
        load_word_of::<_, OFFSET, 3>(sk) as u32,
    ])
}

/// A socket that connects to a lane without having passed the connect program.
#[inline(always)]
fn unseen(sk: *const bpf_sock) {
    // Then the connect program has let it pass, and counted it.
    if !controller_present() {
        return;
    }
    let tuple = tuple(sk);
    if lane_of(EndpointKey::v6(
        tuple.remote,
        tuple.remote_port.to_be_bytes(),
    ))
    .is_some()
    {
        count(Counter::Unseen);
    }
}

#[inline(always)]
fn established(ctx: &SockOpsContext, governed: &Governed) {
    // SAFETY: points into the array map; the socket is locked.
    let conn = unsafe { &mut *governed.conn };
    conn.established_ns = now_ns();
    if conn.held_packets > 0 {
        // The SYNs that were dropped look like loss: `tcp_init_transfer` cuts the window to one segment after the second.
        set_option(ctx, TCP_BPF_IW, INITIAL_WINDOW);
    }
    let took = match conn.released_ns.load() {
        0 => 0,
        released => micros_between(released, conn.established_ns),
    };
    emit(
        EventKind::Established,
        conn,
        governed.id,
        took,
        Urgency::Leisure,
    );
}

#[inline(always)]
fn state_change(new: u32, governed: &Governed) {
    let conn = governed.conn();
    match new {
        TCP_CLOSE => {
            if let Some(failure) = failure(conn, governed.word.gate()) {
                record::fail(governed.conn, governed.id, failure);
            }
            record::close(conn, governed.id);
        }
        // The gateway has closed its side: the response is over, and a request that waits would find nobody.
        TCP_CLOSE_WAIT => {
            let before = record::force(conn, governed.id, |word| {
                Some(word.with_gate(after_end(word.gate())))
            });
            if let Some(before) = before
                && before.gate() == Gate::Open
                && record::owes_answer(conn, before)
            {
                record::fail(governed.conn, governed.id, Failure::Unanswered);
            }
        }
        _ => {}
    }
}

/// Whether the gateway has failed a connection that ends. A connection that is closed by its client, or by both sides in
/// turn, is no longer `Open` then; an idle one may be reset for all we care.
#[inline(always)]
fn failure(conn: &Conn, gate: Gate) -> Option<Failure> {
    if conn.established_ns == 0 {
        let released = conn.released_ns.load();
        return Failure::of_connect(released, now_ns(), conn.reset != 0, conn.left_ns != 0);
    }
    if conn.reset != 0 && gate == Gate::Open {
        Some(Failure::Reset)
    } else {
        None
    }
}

/// The gate of a connection whose gateway has closed its side. Held request bytes stay where they are: sent now, they
/// would be answered with a reset, where HTTP clients expect the end of an idle connection.
#[inline(always)]
fn after_end(gate: Gate) -> Gate {
    match gate {
        Gate::HeldRequest | Gate::Doomed => Gate::Doomed,
        _ => Gate::Closing,
    }
}

#[inline(always)]
fn set_option(ctx: &SockOpsContext, option: i32, value: i32) {
    let size = size_of::<i32>() as i32;
    // SAFETY: `value` lives for the call. A refusal costs some speed, nothing else.
    let _ = unsafe {
        bpf_setsockopt(
            ctx.as_ptr(),
            SOL_TCP,
            option,
            (&raw const value).cast_mut().cast(),
            size,
        )
    };
}
