//! What must hold for any input from outside: one function for each kind of it, which panics where it does not.
//!
//! `cargo xtask fuzz` has libFuzzer look for such inputs (`fuzz/fuzz_targets/`); the test below shows each function the
//! corpus that is kept in `fuzz/corpus/`, on every run of the tests.

use std::time::{Duration, SystemTime};

use shaper_common::{
    ChunkedEnd, ClientBytes, Found, NAME_CAPACITY, RECORD_HEADER, START, Segment, ServerBytes,
    TAIL, Walk,
};

use crate::{
    config::{Config, Files, Origin, TextFile},
    control::{
        Reply, Request,
        protocol::{decode, encode},
    },
    controller::message::{ResponseEnd, ResponseHead, offers_http2},
    history,
    policy::Ns,
    state::{Instant, file},
};

/// A check of one input.
pub type Target = fn(&[u8]);

/// All of them, by the name of their program and of the directory of their corpus.
pub const TARGETS: [(&str, Target); 7] = [
    ("configuration", configuration),
    ("control", control),
    ("dns", dns),
    ("packet", packet),
    ("response", response),
    ("state", state),
    ("stream", stream),
];

/// Between the two files of a configuration.
const NEXT_FILE: char = '\u{1e}';

/// E9: `shaper.toml` and a lane, with a record separator between them, are a configuration or a list of clear errors.
pub fn configuration(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (settings, lane) = text.split_once(NEXT_FILE).unwrap_or(("", &text));
    let file = |path: &str, text: &str| TextFile {
        path: path.into(),
        text: text.to_owned(),
    };
    let files = Files {
        origin: Origin::Directory("fuzz".into()),
        settings: Some(file("shaper.toml", settings)),
        lanes: vec![file("lanes.d/a.toml", lane)],
    };
    match Config::parse(&files) {
        Ok(config) => {
            let lane = &config.lanes[0];
            assert!(!lane.endpoints.is_empty());
            assert!(!lane.enforces() || lane.rules.interactive_reserve < lane.rules.max_inflight);
            assert!(config.settings.fail_after >= Duration::from_secs(1));
            assert_eq!(Config::parse(&files).ok(), Some(config));
        }
        Err(errors) => {
            assert!(errors.error_count() > 0);
            for diagnostic in errors.diagnostics() {
                assert!(diagnostic.at.is_some(), "no place: {diagnostic}");
                assert_eq!(diagnostic.to_string().lines().count(), 2, "{diagnostic}");
                assert!(!diagnostic.what.is_empty() && !diagnostic.help.is_empty());
            }
        }
    }
}

/// E9: a line of the control protocol is a request that is written as it was read, or gets a clear error. Likewise for
/// what a client reads.
pub fn control(input: &[u8]) {
    match decode::<Request>(input) {
        Ok(request) => {
            let line = encode(&request).expect("a request can be written");
            assert_eq!(decode::<Request>(&line).ok(), Some(request));
        }
        Err(error) => assert!(error.to_string().contains("control protocol"), "{error}"),
    }
    if let Err(error) = decode::<Reply>(input) {
        assert!(error.to_string().contains("control protocol"), "{error}");
    }
}

/// A packet is a segment whose parts are all of it, or is refused.
pub fn packet(input: &[u8]) {
    let len = input.len() as u32;
    let Ok(segment) = Segment::parse(|at| input.get(at as usize).copied(), len) else {
        return;
    };
    assert!((20..=60).contains(&segment.tcp_header_len));
    assert!(segment.tcp_offset >= 20);
    assert_eq!(segment.payload_offset() + segment.payload_len, len);
}

/// A name server's answer comes to an end, whose addresses lie in it, and whose name is one.
pub fn dns(input: &[u8]) {
    let byte = |at: u32| input.get(at as usize).copied();
    let mut name = [0; NAME_CAPACITY];
    let Some(mut walk) = Walk::begin(byte) else {
        return;
    };
    // Each step takes a byte of a name or a record, and a name of at most 255 bytes is read once for each record.
    let most = (input.len() + 1) * (NAME_CAPACITY + 16);
    for _ in 0..most {
        match walk.step(byte, &mut name) {
            Found::Nothing => {}
            Found::Question => assert_eq!(name[NAME_CAPACITY - 1], 0),
            Found::Address(_, at) => assert!((at as usize) > 12),
            Found::End => return,
        }
    }
    panic!("no end after {most} steps");
}

/// Payload of either side is told without reading beyond it: handshake or request, interim or answer, end or not.
pub fn stream(input: &[u8]) {
    let len = input.len() as u32;
    let header = |at: u32| -> Option<[u8; RECORD_HEADER]> {
        let at = at as usize;
        input.get(at..at + RECORD_HEADER)?.try_into().ok()
    };
    if let ClientBytes::Handshake { continues } = ClientBytes::of(header, len) {
        assert!((20..=22).contains(&input[0]) && input[1] == 3);
        assert!(continues <= u32::from(u16::MAX));
    }
    let mut start = [0; START];
    let count = input.len().min(START);
    start[..count].copy_from_slice(&input[..count]);
    let server = ServerBytes::of(&start, len, header);
    if matches!(server, ServerBytes::Tickets | ServerBytes::Ticket) {
        assert_eq!((input[0], input[1]), (23, 3));
    }
    let mut tail = [0; TAIL];
    let count = input.len().min(TAIL);
    tail[TAIL - count..].copy_from_slice(&input[input.len() - count..]);
    ChunkedEnd::matches(&tail);
    offers_http2(input);
}

/// A gateway's answer ends behind its head, or nobody knows where.
pub fn response(input: &[u8]) {
    let Some(head) = ResponseHead::read(input, SystemTime::UNIX_EPOCH) else {
        return;
    };
    assert!(head.answer.status < 1000);
    for to_head in [false, true] {
        if let ResponseEnd::After(length) = head.end(to_head) {
            assert!(length > 0);
        }
    }
}

/// What an earlier controller left, pauses and history, is taken or told to be unusable; nothing of it stops a start.
pub fn state(input: &[u8]) {
    const NOW: Instant = Instant {
        ns: Ns(1_000_000_000_000),
        wall: jiff::Timestamp::UNIX_EPOCH,
    };
    let text = String::from_utf8_lossy(input);
    match file::parse(&text) {
        Ok(state) => {
            for lane in ["reasoning", ""] {
                let Some(lasting) = state.lasting(NOW, lane) else {
                    continue;
                };
                assert!(lasting.factor.get() > 0.0 && lasting.factor.get() <= 1.0);
                assert!(lasting.calm_since <= NOW.ns);
                assert!(lasting.pause.is_none_or(|pause| pause.until > NOW.ns));
            }
            let text = serde_json::to_string(&state).expect("a state can be written");
            assert_eq!(file::parse(&text), Ok(state));
        }
        Err(why) => assert!(!why.is_empty()),
    }
    history::survives(input);
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::PathBuf};

    use super::*;

    fn fuzz(part: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../fuzz")
            .join(part)
    }

    fn files(directory: PathBuf) -> Vec<PathBuf> {
        let entries = fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    /// E9: what fuzzing has found worth keeping, once more.
    #[test]
    fn the_kept_corpus_passes_every_target() {
        for (name, target) in TARGETS {
            let inputs = files(fuzz("corpus").join(name));
            assert!(!inputs.is_empty(), "{name} has no corpus");
            for input in inputs {
                // Shown by the test harness if the target panics.
                println!("{}", input.display());
                target(&fs::read(&input).unwrap());
            }
        }
    }

    #[test]
    fn every_target_has_its_program() {
        let stems = |part| -> BTreeSet<String> {
            let stem = |file: PathBuf| file.file_stem().unwrap().to_str().unwrap().to_owned();
            files(fuzz(part)).into_iter().map(stem).collect()
        };
        let names: BTreeSet<_> = TARGETS.map(|(name, _)| name.to_owned()).into();
        assert_eq!(stems("fuzz_targets"), names);
        assert_eq!(stems("corpus"), names);
    }
}
