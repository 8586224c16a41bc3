//! A packet reaches a socket: follow the response, or the name server's answer. Nothing is ever dropped here.

use aya_ebpf::programs::SkBuffContext;
use shaper_common::{
    ChunkedEnd, Class, Conn, END_KNOWN, EventKind, Following, Gate, GateWord, Protocol, START,
    Segment, ServerBytes, TAIL, http1_status, http2_housekeeping, seq_after,
};

use crate::{
    dns,
    emit::{Urgency, emit, event, micros_between, now_ns, send},
    head, packet, record,
    slot::{self, Purse},
    socket::Governed,
};

const PASS: i32 = 1;

/// How far ahead of what TCP expects a segment may lie: more than any receive buffer (`tcp_rmem`).
const FARTHEST_AHEAD: u32 = 1 << 26;

#[inline(always)]
pub fn packet(ctx: &SkBuffContext) -> i32 {
    match packet::governed(ctx) {
        Some(governed) => from_gateway(ctx, &governed),
        None => dns::packet(ctx),
    }
    PASS
}

/// A packet reaches a governed socket.
#[inline(always)]
fn from_gateway(ctx: &SkBuffContext, governed: &Governed) {
    let Ok(segment) = packet::segment(ctx) else {
        return;
    };
    if segment.payload_len == 0 {
        note_reset(ctx, governed, &segment);
        return;
    }
    let start = segment.sequence;
    // SAFETY: points into the array map. Two CPUs can receive for one socket only while its route changes; the
    // worst that could come of it is a wrong guess about the end of a response, which an overrun mends.
    let conn = unsafe { &mut *governed.conn };
    let end = start.wrapping_add(segment.payload_len);
    // This program runs before TCP looks at sequence numbers (`tcp_v4_rcv`: `tcp_filter`). What the gateway sends
    // again, because an acknowledgement was lost or held back here, says nothing new; and what TCP will not take,
    // for it lies far ahead, is a stray packet or a forged one.
    if conn.established_ns != 0 {
        let expected = packet::received(ctx);
        if !seq_after(end, expected) || seq_after(start, expected.wrapping_add(FARTHEST_AHEAD)) {
            return;
        }
    }
    let now = now_ns();
    conn.rx_ns = now;
    conn.rx_seq = end;
    conn.rx_bytes += u64::from(segment.payload_len);
    if conn.following == Following::Head as u32 {
        answer_to_head(ctx, conn, &segment);
    }
    match governed.word.gate() {
        Gate::Open => response(ctx, conn, governed, &segment, start, now),
        Gate::Parked if governed.word.is_guess() => overrun(ctx, conn, governed, &segment),
        _ => {}
    }
}

/// A head that has passed because it is short may be answered before its body follows, which is a rest then.
#[inline(always)]
fn answer_to_head(ctx: &SkBuffContext, conn: &mut Conn, segment: &Segment) {
    if segment.payload_len < START as u32 {
        return;
    }
    let start = packet::load::<START>(ctx, segment.payload_offset()).unwrap_or_default();
    match http1_status(&start) {
        Some([b'1', b'0', b'1']) => conn.following = Following::NoHttp as u32,
        // Interim: the answer is yet to come.
        None | Some([b'1', ..]) => {}
        Some(_) => conn.following = Following::Rest as u32,
    }
}

/// A reset is noted, not believed: if TCP believes it too, the socket's end follows (`tcp_reset`). On a connection that is
/// made TCP believes only one with the very number that it expects (RFC 5961, 3.2; `tcp_validate_incoming`): others are
/// strays or forged, and must not explain an end that comes later.
#[inline(always)]
fn note_reset(ctx: &SkBuffContext, governed: &Governed, segment: &Segment) {
    let made = governed.conn().established_ns != 0;
    if segment.is_reset() && (!made || segment.sequence == packet::received(ctx)) {
        // SAFETY: points into the array map; only this program writes the field, and only this value.
        unsafe { (*governed.conn).reset = 1 };
    }
}

/// Response bytes on a connection that has a slot.
#[inline(always)]
fn response(
    ctx: &SkBuffContext,
    conn: &mut Conn,
    governed: &Governed,
    segment: &Segment,
    start: u32,
    now: u64,
) {
    let mut word = governed.word;
    if word.is_busy() {
        if !is_answer(ctx, conn, segment, now) {
            return;
        }
        let doubtful = match conn.unsure_ns {
            0 => 0,
            since => micros_between(since, now),
        };
        conn.tickets_until_ns = 0;
        conn.unsure_ns = 0;
        // Lost only to a change that makes the answer moot: the client has closed.
        let answered = word.with_busy(false);
        if !record::change(conn, word, answered) {
            return;
        }
        word = answered;
        let after = micros_between(conn.request_ns, now);
        let mut told = event(EventKind::Answered, conn, governed.id, after);
        told.doubtful = doubtful;
        send(&told, Urgency::Leisure);
        head::received(ctx, conn, governed.id, segment, start);
    }
    let end = start.wrapping_add(segment.payload_len);
    let known = conn.response_end.load();
    if known & END_KNOWN != 0 && seq_after(known as u32, conn.answer_from) {
        if !seq_after(known as u32, end) {
            park(conn, governed, word);
        }
        return;
    }
    if ends_chunked(ctx, segment) {
        conn.end_hint_ns = now;
        let urgency = Urgency::now_if(slot::is_wanted(conn));
        emit(EventKind::EndHint, conn, governed.id, 0, urgency);
    } else {
        conn.end_hint_ns = 0;
    }
}

/// Whether the payload begins the answer to the present request.
#[inline(always)]
fn is_answer(ctx: &SkBuffContext, conn: &mut Conn, segment: &Segment, now: u64) -> bool {
    if is_housekeeping(ctx, conn, segment) {
        return doubt(conn, now);
    }
    match server_bytes(ctx, segment) {
        ServerBytes::Answer => true,
        ServerBytes::Continue => false,
        ServerBytes::Ticket if now <= conn.tickets_until_ns && !ends_chunked(ctx, segment) => {
            doubt(conn, now)
        }
        ServerBytes::Ticket => true,
        // A short final answer may have come in the same segment.
        ServerBytes::Interim => doubt(conn, now),
        ServerBytes::Tickets => conn.tickets_until_ns == 0,
    }
}

/// What has come may have been the answer, or something before it. The first such thing counts: pings go on for ever.
#[inline(always)]
fn doubt(conn: &mut Conn, now: u64) -> bool {
    if conn.unsure_ns == 0 {
        conn.unsure_ns = now;
    }
    false
}

/// Whether the payload may be what HTTP/2 sends unasked: settings, pings, window updates.
#[inline(always)]
fn is_housekeeping(ctx: &SkBuffContext, conn: &Conn, segment: &Segment) -> bool {
    conn.protocol.load() == Protocol::Http2 as u32
        && http2_housekeeping(
            &packet::payload_start(ctx, segment, 0).unwrap_or_default(),
            segment.payload_len,
        )
}

#[inline(always)]
fn server_bytes(ctx: &SkBuffContext, segment: &Segment) -> ServerBytes {
    let start = if segment.payload_len >= START as u32 {
        packet::load::<START>(ctx, segment.payload_offset()).unwrap_or_default()
    } else {
        [0; START]
    };
    let header = |at: u32| packet::payload_start(ctx, segment, at);
    ServerBytes::of(&start, segment.payload_len, header)
}

/// The response is over for sure: the slot goes back, the connection stays.
#[inline(always)]
fn park(conn: &Conn, governed: &Governed, word: GateWord) {
    let parked = word.with_gate(Gate::Parked);
    if record::change(conn, word, parked) {
        record::settle(conn, governed.id, word, parked);
    }
}

/// Response bytes although the connection is parked: the guess was wrong, the slot is taken back.
#[inline(always)]
fn overrun(ctx: &SkBuffContext, conn: &mut Conn, governed: &Governed, segment: &Segment) {
    // An alert, such as the gateway's farewell to an idle connection.
    let bytes = server_bytes(ctx, segment);
    if bytes == ServerBytes::Interim
        || bytes == ServerBytes::Continue
        || is_housekeeping(ctx, conn, segment)
    {
        return;
    }
    let Some(lane) = slot::lane(conn.lane) else {
        return;
    };
    let purse = match conn.account.load() {
        0 => Purse::None,
        index => Purse::Known(index - 1),
    };
    let class = Class::from_index(conn.class);
    slot::force(lane, class, &purse);
    // Or it would be one about the next request.
    conn.unsure_ns = 0;
    if record::change(conn, governed.word, governed.word.with_gate(Gate::Open)) {
        let begins = u32::from(governed.word.is_busy());
        emit(
            EventKind::Overrun,
            conn,
            governed.id,
            begins,
            Urgency::Leisure,
        );
    } else {
        slot::give_back(lane, conn);
    }
}

/// Whether the payload ends like a chunked stream does.
#[inline(always)]
fn ends_chunked(ctx: &SkBuffContext, segment: &Segment) -> bool {
    let end = segment.payload_offset() + segment.payload_len;
    // In a shorter payload the tail reaches into the headers, which cannot look like a record of these lengths.
    segment.payload_len >= 5
        && end >= TAIL as u32
        && packet::load::<TAIL>(ctx, end - TAIL as u32)
            .is_some_and(|tail| ChunkedEnd::matches(&tail))
}
