//! A packet leaves a socket: let it pass, or hold the connection by dropping it.

use aya_ebpf::{EbpfContext, helpers::generated::bpf_skb_load_bytes, programs::SkBuffContext};
use shaper_common::{
    ClientBytes, Conn, Counter, EventKind, Following, Gate, GateWord, HEADER_CAPACITY, Protocol,
    RECORD_HEADER, Segment, begins_with_method, is_alert, is_record, may_begin_request, seq_after,
};

use crate::{
    access::within,
    count::count,
    emit::{Urgency, emit, now_ns},
    glimpse, packet,
    presence::{controller_present, gates_open_soon},
    record, resume, slot,
    socket::Governed,
};

const PASS: i32 = 1;
/// Dropped with -EPERM: TCP backs off before it tries again.
const DROP: i32 = 0;
/// Dropped as by a full queue (`NET_XMIT_DROP`): TCP tries again after half a second (`TCP_RESOURCE_PROBE_INTERVAL`), and
/// each try of a request counts as failed: after `tcp_retries2` of them the client gets ETIMEDOUT.
const DROP_FOR_A_MOMENT: i32 = 2;

/// How long before its gate opens for want of a controller a SYN is sent every half second. It has 127 tries.
const SYN_HASTE_NS: u64 = 5_000_000_000;
/// The same for a request: long enough for three tries, where a host may allow no more than a handful.
const REQUEST_HASTE_NS: u64 = 1_500_000_000;

/// How long `wake_bytes` are counted together.
const WAKE_WINDOW_NS: u64 = 10_000_000_000;
/// How many times `wake_bytes` may pass within a window.
const WAKE_SEGMENTS: u32 = 4;

/// How long a server may take to send session tickets, besides two round trips. An answer takes longer: a gateway asks
/// a model first.
const TICKETS_SLACK_NS: u64 = 100_000_000;

const APPLICATION_DATA: u8 = 23;

/// New payload on its way to the gateway.
pub struct Outgoing {
    pub segment: Segment,
    /// Sequence number of the first byte.
    pub start: u32,
    /// Sequence number behind the last byte.
    pub end: u32,
}

#[inline(always)]
pub fn packet(ctx: &SkBuffContext) -> i32 {
    let Some(governed) = packet::governed(ctx) else {
        return PASS;
    };
    let gate = governed.word.gate();
    if gate != Gate::Open && gate != Gate::HeldSyn && !gate.blocks_requests() {
        return PASS;
    }
    let Ok(segment) = packet::segment(ctx) else {
        count(Counter::Malformed);
        return PASS;
    };
    if gate == Gate::HeldSyn {
        return if segment.is_syn() {
            held_syn(ctx, &governed, &segment)
        } else {
            PASS
        };
    }
    // Without payload: acknowledgements, FIN, RST, keep-alive and window probes.
    if segment.payload_len == 0 {
        return PASS;
    }
    if segment.is_syn() && gate.blocks_requests() {
        // TCP Fast Open carries a request. TCP follows up with a SYN that has no data (`tcp_send_syn_data`).
        return DROP;
    }
    // SYN counts as one (RFC 9293, 3.4).
    let start = segment.sequence.wrapping_add(u32::from(segment.is_syn()));
    let end = start.wrapping_add(segment.payload_len);
    // What has passed once passes again: TCP repeats it.
    if governed.conn().tx_bytes != 0 && !seq_after(end, governed.conn().passed_seq) {
        return PASS;
    }
    let outgoing = Outgoing {
        segment,
        start,
        end,
    };
    new_payload(ctx, &governed, &outgoing)
}

/// The controller is gone: the connection is governed no more. For good, so that a controller that comes back does not
/// hold the rest of a request whose beginning has passed.
#[inline(always)]
fn pass_ungoverned(governed: &Governed) -> i32 {
    count(Counter::ControllerLost);
    record::force(governed.conn(), governed.id, |word| {
        let held = word.gate().waits() || word.gate() == Gate::Parked;
        if held {
            Some(word.with_gate(Gate::Released))
        } else {
            None
        }
    });
    PASS
}

/// The verdict on a packet that is held: when the controller is about to be given up, TCP is to ask again at once after
/// that, and not at its next turn, which can be many seconds away.
#[inline(always)]
fn hold(haste_ns: u64) -> i32 {
    if gates_open_soon(haste_ns) {
        DROP_FOR_A_MOMENT
    } else {
        DROP
    }
}

/// A SYN whose connect is held.
#[inline(always)]
fn held_syn(ctx: &SkBuffContext, governed: &Governed, segment: &Segment) -> i32 {
    if !controller_present() {
        return pass_ungoverned(governed);
    }
    // SAFETY: points into the array map; the egress program of one socket runs under its lock, so nobody else writes
    // these fields.
    let conn = unsafe { &mut *governed.conn };
    conn.held_packets += 1;
    if conn.held.len == 0 {
        keep_header(ctx, conn, segment);
        // The controller opens the gate and then looks for a SYN to send again; we store the SYN and then look at the
        // gate. One of us sees the other, so an admission in between loses nothing.
        match record::word_of(conn, governed.id) {
            Some(word) if word.gate() == Gate::HeldSyn => {}
            _ => return PASS,
        }
    }
    hold(SYN_HASTE_NS)
}

/// New payload on a connection that has a slot, or at a gate that lets no requests pass.
#[inline(always)]
fn new_payload(ctx: &SkBuffContext, governed: &Governed, outgoing: &Outgoing) -> i32 {
    let gate = governed.word.gate();
    // SAFETY: points into the array map; as above.
    let conn = unsafe { &mut *governed.conn };
    if gate == Gate::Doomed {
        // Nobody waits for an answer to this any more, whoever is in charge.
        return DROP;
    }
    if gate == Gate::Open && governed.word.is_busy() {
        if conn.unsure_ns != 0 && goes_on(ctx, conn, outgoing) {
            conn.unsure_ns = 0;
        }
        note_passed(conn, outgoing);
        return PASS;
    }
    if gate != Gate::Open && !controller_present() {
        return pass_ungoverned(governed);
    }
    if pass_handshake(ctx, conn, governed, outgoing) {
        return PASS;
    }
    note_preface(ctx, conn, governed, outgoing);
    // What would pass a closed gate makes no request: window updates, pings, the end of a handshake.
    let is_short = if gate == Gate::Open {
        is_short(conn, outgoing)
    } else {
        is_wake(conn, outgoing.segment.payload_len)
    };
    if is_short {
        pass_short(ctx, conn, outgoing);
        return PASS;
    }
    if (gate == Gate::Open || gate == Gate::Parked) && is_rest(ctx, conn, outgoing) {
        note_passed(conn, outgoing);
        return PASS;
    }
    if gate == Gate::Open {
        next_request(ctx, governed, outgoing)
    } else {
        request(ctx, governed, governed.word, outgoing)
    }
}

/// A request begins on a connection that has a slot, so the answer before it is over.
#[inline(always)]
fn next_request(ctx: &SkBuffContext, governed: &Governed, outgoing: &Outgoing) -> i32 {
    // SAFETY: points into the array map; as above.
    let conn = unsafe { &mut *governed.conn };
    // While others wait it goes behind them: a client that sends one request after the other must not keep its slot from
    // them.
    let next = conn.sent_long != 0 && conn.rx_ns > conn.admitted_ns.load();
    if next
        && conn.protocol.load() == Protocol::Serial as u32
        && resume::yield_slot(conn, governed.id, governed.word)
    {
        return request(
            ctx,
            governed,
            governed.word.with_gate(Gate::HeldRequest),
            outgoing,
        );
    }
    // The controller parks only a connection that is not busy, and by a compare-and-swap: if it was faster, this request
    // must look for a slot again.
    if !record::change(conn, governed.word, governed.word.with_busy(true)) {
        let Some(word) = record::word_of(conn, governed.id) else {
            return PASS;
        };
        if word.gate() == Gate::Parked {
            return request(ctx, governed, word, outgoing);
        }
    }
    begin_request(ctx, conn, outgoing);
    PASS
}

/// Whether payload belongs to a request or begins another: so what came before it was no answer, or is over. A farewell
/// does not, and of HTTP/2 short payload acknowledges settings and pings.
#[inline(always)]
fn goes_on(ctx: &SkBuffContext, conn: &Conn, outgoing: &Outgoing) -> bool {
    let is_housekeeping =
        conn.protocol.load() == Protocol::Http2 as u32 && is_short(conn, outgoing);
    !is_housekeeping && !is_alert(&start(ctx, outgoing), outgoing.segment.payload_len)
}

#[inline(always)]
fn is_short(conn: &Conn, outgoing: &Outgoing) -> bool {
    slot::lane(conn.lane).is_some_and(|lane| outgoing.segment.payload_len <= lane.wake_bytes.load())
}

/// Whether payload is the rest of a request that has its answer already: a gateway that turns a request down does not wait
/// for its end, and a client that writes all of it before it reads must not wait for a slot in its midst.
#[inline(always)]
fn is_rest(ctx: &SkBuffContext, conn: &Conn, outgoing: &Outgoing) -> bool {
    conn.following == Following::Rest as u32
        && conn.protocol.load() == Protocol::Serial as u32
        && !may_begin_request(&start(ctx, outgoing))
}

/// Lets payload pass that is too short for a request. It may be the head of one whose body is none, or part of that.
#[inline(always)]
fn pass_short(ctx: &SkBuffContext, conn: &mut Conn, outgoing: &Outgoing) {
    if conn.following != Following::NoHttp as u32 {
        let start = start(ctx, outgoing);
        if begins_with_method(&start) || begins_a_method(ctx, outgoing) {
            conn.following = Following::Head as u32;
        } else if is_record(&start) {
            conn.following = Following::Request as u32;
        }
    }
    note_passed(conn, outgoing);
}

/// Whether payload may be the first few letters of a method.
#[inline(always)]
fn begins_a_method(ctx: &SkBuffContext, outgoing: &Outgoing) -> bool {
    outgoing.segment.payload_len < RECORD_HEADER as u32
        && packet::load::<1>(ctx, outgoing.segment.payload_offset())
            .is_some_and(|[first]| first.is_ascii_uppercase())
}

/// The first bytes of the payload, zeros if there are fewer.
#[inline(always)]
fn start(ctx: &SkBuffContext, outgoing: &Outgoing) -> [u8; RECORD_HEADER] {
    packet::payload_start(ctx, &outgoing.segment, 0).unwrap_or_default()
}

/// Lets payload pass that belongs to a TLS handshake.
#[inline(always)]
fn pass_handshake(
    ctx: &SkBuffContext,
    conn: &mut Conn,
    governed: &Governed,
    outgoing: &Outgoing,
) -> bool {
    let len = outgoing.segment.payload_len;
    let first = conn.tx_bytes == 0;
    // The rest of a handshake record whose start has passed.
    let rest = if !first && seq_after(conn.handshake_seq, outgoing.start) {
        conn.handshake_seq.wrapping_sub(outgoing.start)
    } else {
        0
    };
    let continues = if rest >= len {
        rest - len
    } else {
        match client_bytes(ctx, &outgoing.segment, rest) {
            ClientBytes::Handshake { continues } => continues,
            ClientBytes::Request => return false,
        }
    };
    if first {
        // Whether its requests take turns is to be known before its second one.
        let urgency = Urgency::now_if(slot::is_wanted(conn));
        glimpse::sent(ctx, conn, governed.id, outgoing, urgency);
    }
    note_passed(conn, outgoing);
    conn.handshake_seq = outgoing.end.wrapping_add(continues);
    true
}

/// Request bytes at a gate that lets none pass.
#[inline(always)]
fn request(ctx: &SkBuffContext, governed: &Governed, word: GateWord, outgoing: &Outgoing) -> i32 {
    // SAFETY: points into the array map; as above.
    let conn = unsafe { &mut *governed.conn };
    if word.gate() == Gate::Parked && resume::resume(conn, governed.id, word) {
        begin_request(ctx, conn, outgoing);
        return PASS;
    }
    let first = conn.held.len == 0 || is_syn_header(conn);
    let acknowledged = acknowledgement(conn);
    conn.held_packets += 1;
    keep_header(ctx, conn, &outgoing.segment);
    // The acknowledgement that rides on the segment is lost with it, and TCP takes it for sent (`__tcp_transmit_skb`:
    // `tcp_event_ack_sent`). The controller's probe carries it.
    if first || acknowledgement(conn) != acknowledged {
        emit(EventKind::RequestHeld, conn, governed.id, 0, Urgency::Now);
    }
    // As with a held SYN: an admission in between must not be missed.
    match record::word_of(conn, governed.id) {
        Some(now) if now.gate() == Gate::Open => {
            if record::change(conn, now, now.with_busy(true)) {
                begin_request(ctx, conn, outgoing);
                return PASS;
            }
            DROP
        }
        Some(now) if now.gate().blocks_requests() => hold(REQUEST_HASTE_NS),
        _ => PASS,
    }
}

/// Whether a payload passes a closed gate because it is short: the end of a TLS handshake, the beginning of HTTP/2,
/// pings, alerts. A prompt is longer, and many short ones are not let through either.
#[inline(always)]
fn is_wake(conn: &mut Conn, len: u32) -> bool {
    let Some(lane) = slot::lane(conn.lane) else {
        return true;
    };
    let limit = lane.wake_bytes.load();
    if len > limit {
        return false;
    }
    let now = now_ns();
    if now.saturating_sub(conn.wake_window_ns) > WAKE_WINDOW_NS {
        conn.wake_window_ns = now;
        conn.wake_used = 0;
    }
    if conn.wake_used + len > limit * WAKE_SEGMENTS {
        return false;
    }
    conn.wake_used += len;
    true
}

#[inline(always)]
fn client_bytes(ctx: &SkBuffContext, segment: &Segment, behind: u32) -> ClientBytes {
    let header = |at: u32| packet::payload_start(ctx, segment, behind + at);
    ClientBytes::of(header, segment.payload_len - behind)
}

/// The first bytes of a request leave.
#[inline(always)]
fn begin_request(ctx: &SkBuffContext, conn: &mut Conn, outgoing: &Outgoing) {
    let now = now_ns();
    let start = start(ctx, outgoing);
    conn.tickets_until_ns = 0;
    conn.unsure_ns = 0;
    if conn.sent_long == 0 && expects_tickets(conn, &start) {
        conn.tickets_until_ns = now + packet::round_trip_ns(ctx) * 2 + TICKETS_SLACK_NS;
    }
    conn.request_ns = now;
    conn.sent_long = 1;
    if conn.following != Following::NoHttp as u32 {
        let following = if begins_with_method(&start) || conn.following == Following::Head as u32 {
            Following::Rest
        } else {
            Following::Request
        };
        conn.following = following as u32;
    }
    conn.end_hint_ns = 0;
    conn.response_end.store(0);
    conn.head_request = u32::from(start == *b"HEAD ");
    conn.answer_from = packet::received(ctx);
    note_passed(conn, outgoing);
}

/// Learns from a connection's first payload in the clear whether it speaks HTTP/2 (RFC 9113, 3.4).
#[inline(always)]
fn note_preface(ctx: &SkBuffContext, conn: &Conn, governed: &Governed, outgoing: &Outgoing) {
    if conn.tx_bytes != 0 {
        return;
    }
    let start = start(ctx, outgoing);
    if start == *b"PRI *" {
        conn.protocol.store(Protocol::Http2 as u32);
        // For the operator to be told.
        glimpse::sent(ctx, conn, governed.id, outgoing, Urgency::Leisure);
    } else if !is_record(&start) {
        conn.protocol.store(Protocol::Serial as u32);
    }
}

/// Whether session tickets may come before the answer to the first request: nothing has come from the gateway since the
/// client finished its handshake, or the handshake ends in this very segment.
#[inline(always)]
fn expects_tickets(conn: &Conn, start: &[u8; RECORD_HEADER]) -> bool {
    is_record(start) && (start[0] != APPLICATION_DATA || conn.rx_ns < conn.tx_ns)
}

#[inline(always)]
fn note_passed(conn: &mut Conn, outgoing: &Outgoing) {
    conn.tx_ns = now_ns();
    conn.tx_bytes += u64::from(outgoing.segment.payload_len);
    conn.passed_seq = outgoing.end;
    conn.handshake_seq = outgoing.end;
}

#[inline(always)]
fn is_syn_header(conn: &Conn) -> bool {
    conn.held.header[13] & 0x02 != 0
}

/// The acknowledgement number in the kept header (RFC 9293, 3.1).
#[inline(always)]
fn acknowledgement(conn: &Conn) -> u32 {
    let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = conn.held.header;
    u32::from_be_bytes([a, b, c, d])
}

/// Keeps the TCP header of a packet that is dropped, for the controller to send in the socket's name.
#[inline(always)]
fn keep_header(ctx: &SkBuffContext, conn: &mut Conn, segment: &Segment) {
    const SHORTEST: u32 = 20;
    let Some(len) = within::<SHORTEST, { HEADER_CAPACITY as u32 }>(segment.tcp_header_len) else {
        return;
    };
    conn.held.version.add(1);
    let header = (&raw mut conn.held.header).cast();
    // SAFETY: `len` bytes fit into `header`.
    let read = unsafe { bpf_skb_load_bytes(ctx.as_ptr(), segment.tcp_offset, header, len) };
    if read == 0 {
        conn.held.len = len;
        conn.held.ns = now_ns();
        conn.held.acknowledged = packet::acknowledged(ctx);
    }
    conn.held.version.add(1);
}
