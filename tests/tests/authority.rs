//! One authority: an instance has one controller, and a cgroup has one instance.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result};
use shaper_tests::controller::{Controller, ControllerBuilder};
use shaper_tests::kernel_state::{LoadedPrograms, attached_under};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;

fn builder(stage: &Stage) -> Result<ControllerBuilder> {
    let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 4000));
    Controller::builder(stage)?.lane("sound", LaneFile::over(&[nobody]))
}

/// C1: the second controller of an instance says who holds it: process, control socket, configuration.
#[test]
fn a_second_controller_says_who_has_the_instance() -> Result<()> {
    let stage = Stage::set()?;
    let first = builder(&stage)?.start()?;
    let second = first.run_second()?;
    assert_eq!(second.exit_code()?, 1, "{}", second.stderr);
    let who = [
        first.pid().to_string(),
        first.control().display().to_string(),
        first.config().display().to_string(),
    ];
    for word in &who {
        assert!(second.stderr.contains(word), "{word}: {}", second.stderr);
    }
    Ok(())
}

/// C1: two instances over the same cgroups would each hold the other's connections.
#[test]
fn a_second_instance_over_the_same_cgroups_is_refused_and_leaves_nothing() -> Result<()> {
    let stage = Stage::set()?;
    for staying in [false, true] {
        let first = builder(&stage)?;
        let first = match staying {
            true => first.stays_attached()?,
            false => first,
        };
        let first = first.start()?;
        let with_the_first = LoadedPrograms::now()?;
        let refused = builder(&stage)?.run_to_its_end()?;
        assert_eq!(refused.exit_code()?, 1, "{}", refused.stderr);
        for word in [first.instance(), &first.pid().to_string(), "governed by"] {
            assert!(refused.stderr.contains(word), "{word}: {}", refused.stderr);
        }
        with_the_first.ensure_nothing_more()?;
        assert_eq!(attached_under(stage.cgroups().path())?.len(), 3 * 8);
        first.stop()?;
    }
    Ok(())
}

/// C1: so is one over a cgroup above.
#[test]
fn a_second_instance_over_a_cgroup_above_is_refused() -> Result<()> {
    let stage = Stage::set()?;
    let first = builder(&stage)?.start()?;
    let name = stage
        .cgroups()
        .path()
        .file_name()
        .context("it has a name")?;
    let refused = builder(&stage)?
        .class_pattern("bulk", name.to_str().context("it is text")?)?
        .run_to_its_end()?;
    assert_eq!(refused.exit_code()?, 1, "{}", refused.stderr);
    assert!(
        refused.stderr.contains(first.instance()),
        "{}",
        refused.stderr
    );
    Ok(())
}

/// A lock goes with its process, and what a dead one left is no obstacle.
#[test]
fn a_stale_lock_is_no_obstacle() -> Result<()> {
    let stage = Stage::set()?;
    let controller = builder(&stage)?.stays_attached()?.start()?;
    let lock = format!("/run/shaper/{}.lock", controller.instance());
    let departed = controller.killed()?;
    assert!(Path::new(&lock).exists());
    assert_eq!(mode(&lock)?, 0o600);
    let controller = departed.restart()?;
    let text = fs::read_to_string(&lock)?;
    assert!(text.contains(&controller.pid().to_string()), "{text}");
    Ok(())
}

fn mode(path: &str) -> Result<u32> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::metadata(path)?.permissions().mode() & 0o777)
}
