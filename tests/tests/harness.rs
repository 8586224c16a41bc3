//! The harness itself, without the controller: what it measures has to be right before it may judge.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use shaper_tests::cgroup::{CgroupTree, cgroup2_mount};
use shaper_tests::client::{CurlOutcome, curl, finish_all, probe, python};
use shaper_tests::clock::poll_until;
use shaper_tests::gateway::{Answer, Gateway, Latch, Outcome, TlsVersion};
use shaper_tests::kernel_state::{LoadedPrograms, attached_under};
use shaper_tests::netns::VethPair;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until the gateway has so many requests whole.
fn wait_for_requests(gateway: &Gateway, count: usize) -> Result<()> {
    poll_until(PATIENCE, || {
        let arrived = gateway.tally().requests;
        (arrived
            .iter()
            .filter(|record| record.last_byte.is_some())
            .count()
            == count)
            .then_some(())
    })
    .with_context(|| format!("{count} requests did not arrive: {:?}", gateway.tally()))
}

#[test]
fn the_gateway_counts_the_requests_it_has_in_service_over_all_its_ports() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::builder()
        .listen_v4()?
        .listen_v6()?
        .answer(Answer::once_open(&release))
        .start()?;
    let mut clients = Vec::new();
    for number in 0..6 {
        let address = gateway.addresses()[number % 2];
        clients.push(curl(&gateway.url_of(address), &number.to_string()).spawn_in(&stage.bulk)?);
    }
    wait_for_requests(&gateway, 6)?;
    release.open();
    for report in finish_all(clients, PATIENCE)? {
        assert_eq!(report.outcome, CurlOutcome::answered());
    }
    let one_more = curl(&gateway.url(), "late").spawn_in(&stage.bulk)?;
    assert_eq!(one_more.finish(PATIENCE)?.outcome, CurlOutcome::answered());

    let tally = gateway.tally();
    assert_eq!(
        (tally.accepted, tally.peak_in_service, tally.served()),
        (7, 6, 7)
    );
    assert_eq!(tally.labels().last(), Some(&"late"));
    for record in &tally.requests {
        assert_eq!(record.request.method, "POST");
        assert!(record.body_bytes > 128, "{record:?}");
        assert!(record.answered > record.last_byte && record.last_byte >= Some(record.first_byte));
    }
    Ok(())
}

#[test]
fn the_gateway_tells_clients_that_left_from_clients_it_served() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::never())?;
    let client = curl(&gateway.url(), "leaves").spawn_in(&stage.bulk)?;
    wait_for_requests(&gateway, 1)?;
    client.kill9()?;
    poll_until(PATIENCE, || (gateway.tally().aborted() == 1).then_some(()))
        .context("the client's end was not seen")?;
    assert_eq!(gateway.tally().served(), 0);
    Ok(())
}

#[test]
fn the_gateway_turns_away_what_is_more_than_it_likes() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::builder()
        .listen_v4()?
        .answer(Answer::once_open(&release))
        .dislike(1, Answer::too_many_requests(Duration::from_secs(7)))
        .start()?;
    let liked = curl(&gateway.url(), "liked").spawn_in(&stage.bulk)?;
    wait_for_requests(&gateway, 1)?;
    let disliked = curl(&gateway.url(), "disliked").spawn_in(&stage.bulk)?;
    assert_eq!(
        disliked.finish(PATIENCE)?.outcome,
        CurlOutcome::Answered(429)
    );
    release.open();
    assert_eq!(liked.finish(PATIENCE)?.outcome, CurlOutcome::answered());
    assert_eq!(gateway.tally().requests[1].outcome, Outcome::TurnedAway);
    Ok(())
}

#[test]
fn streams_large_answers_and_kept_alive_connections_reach_the_client_whole() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::builder()
        .listen_v4()?
        .answer_by(|request| match request.path.as_str() {
            "/stream" => Answer::at_once().events(5, Duration::from_millis(50)),
            _ => Answer::at_once().sized(1_000_000),
        })
        .start()?;
    let base = format!("http://{}", gateway.address());
    let client = curl(&format!("{base}/stream"), "stream")
        .argument("--next")
        .argument("--silent")
        .argument("--noproxy")
        .argument("*")
        .argument("--fail")
        .argument("--output")
        .argument("/dev/null")
        .argument(format!("{base}/large"))
        .spawn_in(&stage.bulk)?;
    assert_eq!(client.finish(PATIENCE)?.outcome, CurlOutcome::answered());

    let tally = gateway.tally();
    assert_eq!((tally.accepted, tally.served()), (1, 2), "{tally:?}");
    let stream = &tally.requests[0];
    let lasted = stream.answered.map(|end| end.since(stream.first_byte));
    assert!(lasted >= Some(Duration::from_millis(200)), "{lasted:?}");
    Ok(())
}

#[test]
fn the_gateway_speaks_the_tls_version_it_is_asked_for() -> Result<()> {
    let stage = Stage::set()?;
    for (version, at_most) in [(TlsVersion::V1_2, "1.2"), (TlsVersion::V1_3, "1.3")] {
        let gateway = Gateway::builder().listen_v4()?.tls(version).start()?;
        let authority = tempfile::NamedTempFile::new()?;
        fs::write(
            &authority,
            gateway.certificate().context("a TLS gateway has one")?,
        )?;
        let client = curl(&gateway.url(), "tls")
            .argument("--cacert")
            .argument(authority.path().to_string_lossy())
            .argument("--tls-max")
            .argument(at_most)
            .spawn_in(&stage.bulk)?;
        assert_eq!(
            client.finish(PATIENCE)?.outcome,
            CurlOutcome::answered(),
            "{version:?}"
        );
        assert_eq!(gateway.tally().served(), 1);
    }
    Ok(())
}

#[test]
fn a_refused_connect_is_reported_with_its_errno_by_every_client() -> Result<()> {
    #[derive(Debug, Deserialize, PartialEq)]
    struct Refused {
        errno: i32,
    }
    let stage = Stage::set()?;
    let gone = Gateway::answering(Answer::at_once())?.address();
    let url = format!("http://{gone}/");
    let report = curl(&url, "curl").spawn_in(&stage.bulk)?.finish(PATIENCE)?;
    assert_eq!(report.outcome, CurlOutcome::refused());

    let report = probe(gone, "probe")?
        .spawn_in(&stage.bulk)?
        .finish(PATIENCE)?;
    let error = report.answered().expect_err("nobody listens there");
    assert!(error.to_string().contains("ECONNREFUSED"), "{error}");

    let program = "import json, socket, sys\n\
                   print(json.dumps({'errno': socket.socket().connect_ex((sys.argv[1], int(sys.argv[2])))}))";
    let report = python::<Refused>("connect", program)
        .argument(gone.ip().to_string())
        .argument(gone.port().to_string())
        .spawn_in(&stage.bulk)?
        .finish(PATIENCE)?;
    assert_eq!(
        report.0,
        Refused {
            errno: nix::errno::Errno::ECONNREFUSED as i32
        }
    );
    Ok(())
}

#[test]
fn a_client_is_a_member_of_its_cgroup_before_its_first_instruction() -> Result<()> {
    let stage = Stage::set()?;
    let program = "import json\nprint(json.dumps(open('/proc/self/cgroup').read()))";
    let report = python::<String>("cgroup", program)
        .spawn_in(&stage.interactive)?
        .finish(PATIENCE)?;
    let expected = format!("0::/{}", stage.interactive.relative());
    assert!(
        report.0.lines().any(|line| line == expected),
        "{expected} in {}",
        report.0
    );
    Ok(())
}

#[test]
fn a_cgroup_tree_goes_with_its_members() -> Result<()> {
    let stage = Stage::set()?;
    let tree = CgroupTree::create()?;
    let path = tree.path().to_owned();
    let gateway = Gateway::answering(Answer::never())?;
    let mut client = curl(&gateway.url(), "member").spawn_in(&tree.group("deep/deeper")?)?;
    wait_for_requests(&gateway, 1)?;
    drop(tree);
    assert!(!path.exists(), "{} is still there", path.display());
    poll_until(PATIENCE, || {
        client.still_runs().is_ok_and(|runs| !runs).then_some(())
    })
    .context("the member still runs")?;
    drop(stage);
    Ok(())
}

#[test]
fn namespaces_joined_by_veth_carry_both_families_and_leave_nothing_behind() -> Result<()> {
    let stage = Stage::set()?;
    let pair = VethPair::create()?;
    let gateway = Gateway::builder()
        .listen_in(&pair.gateway, SocketAddr::from((pair.gateway.v4, 0)))?
        .listen_in(&pair.gateway, SocketAddr::from((pair.gateway.v6, 0)))?
        .start()?;
    for &address in gateway.addresses() {
        let times = probe(address, "veth")?
            .in_netns(&pair.client)?
            .spawn_in(&stage.bulk)?
            .finish(PATIENCE)?
            .answered()?;
        assert!(times.bytes > 0 && times.connected > times.started);
    }
    let clients: Vec<IpAddr> = gateway
        .tally()
        .requests
        .iter()
        .map(|record| record.peer.ip())
        .collect();
    assert_eq!(
        clients,
        [IpAddr::from(pair.client.v4), IpAddr::from(pair.client.v6)]
    );
    drop(gateway);
    drop(pair);
    let mine = format!("shaper-test-{}-", std::process::id());
    let left: Vec<_> = fs::read_dir("/run/netns")?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(&mine))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

#[test]
fn a_v4_mapped_address_reaches_a_v4_gateway() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let IpAddr::V4(v4) = gateway.address().ip() else {
        panic!("the gateway listens on IPv4");
    };
    let mapped: Ipv6Addr = v4.to_ipv6_mapped();
    let address = SocketAddr::from((mapped, gateway.address().port()));
    let report = probe(address, "mapped")?
        .spawn_in(&stage.bulk)?
        .finish(PATIENCE)?;
    assert!(report.answered()?.bytes > 0);
    Ok(())
}

#[test]
fn the_kernel_is_asked_for_programs_of_the_stage_only() -> Result<()> {
    let stage = Stage::set()?;
    assert!(cgroup2_mount()?.join("cgroup.controllers").is_file());
    assert_eq!(
        attached_under(stage.cgroups().path())?,
        Vec::<String>::new()
    );
    LoadedPrograms::now()?.ensure_nothing_left(stage.cgroups())
}
