//! Random bytes as packets, through the programs that are loaded: they pass, or wait, and nothing else happens.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::kernel_state::{Maps, PacketProgram};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::script::script;
use shaper_tests::stage::{Scale, Stage};

const PATIENCE: Duration = Duration::from_secs(60);

/// Numbers that look random and are the same in every run (xorshift64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// An Ethernet frame, as the kernel's test run wants it, with an IP packet that is random but for a few bytes that lead
/// deeper into the programs.
fn random_frame(random: &mut Random) -> Vec<u8> {
    const ETHERNET: usize = 14;
    const PROTOCOL_AT: usize = 12;
    let length = 60 + random.next() as usize % 1400;
    let mut frame = random.bytes(ETHERNET + length);
    let (kind, version, next_header_at) = match random.next() % 2 {
        0 => ([0x08, 0x00], 0x45, 9),
        _ => ([0x86, 0xdd], 0x60, 6),
    };
    frame[PROTOCOL_AT..ETHERNET].copy_from_slice(&kind);
    if !random.next().is_multiple_of(4) {
        frame[ETHERNET] = version;
        frame[ETHERNET + next_header_at] = 6;
    }
    frame
}

/// A22: a packet of no governed socket passes, whatever it is made of.
#[test]
fn random_packets_pass_the_loaded_programs() -> Result<()> {
    let packets = Scale::asked().pick(2000, 100);
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()))?
        .start()?;
    let directory = tempfile::tempdir()?;
    let packet = directory.path().join("packet");
    let programs = ["shaper_egress", "shaper_ingress"]
        .map(|name| PacketProgram::of(controller.pid(), name).map(|program| (name, program)));
    let programs = programs.into_iter().collect::<Result<Vec<_>>>()?;
    let mut random = Random(0x5eed);
    for _ in 0..packets {
        fs::write(&packet, random_frame(&mut random))?;
        for (name, program) in &programs {
            let verdict = program.run(&packet)?;
            assert_eq!(verdict, 1, "{name} on {:?}", fs::read(&packet)?);
        }
    }
    Ok(())
}

#[derive(Debug, Deserialize)]
struct Call {
    status: u16,
}

/// Calls from a port of its own choice.
const CALLS_FROM_A_PORT: &str = r#"
connection = socket.socket()
connection.bind((HOST, int(ARGUMENTS[0])))
connection.connect((HOST, PORT))
report(status=call(connection))
"#;

#[derive(Debug, Deserialize)]
struct Injected {
    packets: usize,
}

/// Sends segments in the gateway's name to those ports, random but for what brings them to the socket: addresses, ports
/// and checksums. Their sequence numbers are far from what TCP expects, which looks at them after the programs did.
const INJECTS: &str = r#"
import random
random.seed(7)
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
address = socket.inet_aton(HOST)
STARTS = [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"HTTP/1.1 100 ", b"\x17\x03\x03", b"\x15\x03\x03\x00\x02",
          b"\x16\x03\x03\xff\xff", b"PRI * HTTP/2.0", b"0\r\n\r\n"]

def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff

sent = 0
for _ in range(int(ARGUMENTS[0])):
    port = int(random.choice(ARGUMENTS[1:]))
    options = random.randbytes(4 * random.randrange(11))
    payload = random.choice(STARTS) + random.randbytes(random.choice([0, 1, 4, 22, 300, 1400]))
    # Neither SYN nor RST, which TCP may answer with an end.
    flags = random.randrange(256) & ~0x06 | 0x10
    head = struct.pack("!HHIIBBHHH", PORT, port, random.randrange(1 << 32), random.randrange(1 << 32),
                       (5 + len(options) // 4) << 4, flags, 1000, 0, random.randrange(1 << 16))
    segment = head + options + payload
    pseudo = address + address + struct.pack("!BBH", 0, 6, len(segment))
    segment = segment[:16] + struct.pack("!H", checksum(pseudo + segment)) + segment[18:]
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(segment), 0, 0x4000, 64, 6, 0, address, address)
    raw.sendto(ip + segment, (HOST, 0))
    sent += 1
report(packets=sent)
"#;

/// Two ports that are hardly in use.
const PORTS: [u16; 2] = [20_001, 20_002];

/// E4: segments that are not the gateway's cannot end a connection, strand a slot or confuse the counts.
#[test]
fn random_segments_to_governed_sockets_strand_nothing() -> Result<()> {
    let packets = Scale::asked().pick(50_000, 3000);
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let lane = LaneFile::over(gateway.addresses())
        .connect_hold(Duration::ZERO)
        .line("idle_release = \"200ms\"");
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;
    let mut clients = Vec::new();
    for (queued, port) in PORTS.into_iter().enumerate() {
        let client = script::<Call>("calls", &gateway, CALLS_FROM_A_PORT)
            .argument(port.to_string())
            .spawn_in(&stage.default)?;
        controller.wait_for("gateway", 1, queued)?;
        clients.push(client);
    }
    let injected = script::<Injected>("injects", &gateway, INJECTS)
        .argument(packets.to_string())
        .argument(PORTS[0].to_string())
        .argument(PORTS[1].to_string())
        .spawn_in(&stage.outside)?
        .finish(PATIENCE)?
        .0;
    assert_eq!(injected.packets, packets);
    release.open();
    for client in clients {
        assert_eq!(client.finish(PATIENCE)?.0.status, 200);
    }
    controller.wait_for("gateway", 0, 0)?;
    assert!(Maps::of(controller.pid())?.first_lane()?.is_quiet());
    let ungoverned = controller.metrics()?.sum("shaper_ungoverned_total", &[]);
    assert_eq!(ungoverned, 0.0, "shaper_ungoverned_total");
    Ok(())
}

#[derive(Debug, Deserialize)]
struct Sent {
    bytes: usize,
}

/// Sends random payload in random pieces, on many connections one after the other.
const SENDS_NOISE: &str = r#"
import random
random.seed(int(ARGUMENTS[0]))
sent = 0
for _ in range(int(ARGUMENTS[1])):
    connection = plain()
    connection.setblocking(False)
    try:
        for _ in range(random.randrange(1, 6)):
            start = random.choice([b"", b"\x16\x03\x01", b"\x14\x03\x03\x00\x01\x01\x17\x03\x03\x00\x35", b"\x15\x03\x03\x00\x02",
                                   b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET ", b"HEAD "])
            sent += connection.send(start + random.randbytes(random.choice([0, 1, 20, 129, 3000])) or b".")
            time.sleep(random.choice([0, 0.002]))
    except OSError:
        pass
    if random.random() < 0.5:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
report(bytes=sent)
"#;

/// E4: whatever a client sends, on a gate that is open or shut, nothing is left of it.
#[test]
fn noise_from_governed_sockets_strands_nothing() -> Result<()> {
    let connections = Scale::asked().pick(500, 50);
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let lane = LaneFile::over(gateway.addresses())
        .limit(2)
        .connect_hold(Duration::ZERO)
        .line("idle_release = \"100ms\"\nabort_hold = \"50ms\"");
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;
    let clients = (0..6)
        .map(|seed| {
            script::<Sent>("noise", &gateway, SENDS_NOISE)
                .argument(seed.to_string())
                .argument(connections.to_string())
                .spawn_in(&stage.default)
        })
        .collect::<Result<Vec<_>>>()?;
    for client in clients {
        let sent = client.finish(PATIENCE)?.0;
        assert!(sent.bytes > 0);
    }
    controller
        .wait_for("gateway", 0, 0)
        .context("all have gone")?;
    assert!(Maps::of(controller.pid())?.first_lane()?.is_quiet());
    Ok(())
}
