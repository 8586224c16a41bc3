//! What cannot work is refused with one clear error and exit code 1, and leaves nothing attached.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::Result;
use shaper_tests::controller::{Controller, ControllerBuilder};
use shaper_tests::kernel_state::LoadedPrograms;
use shaper_tests::lane_file::LaneFile;
use shaper_tests::process::Finished;
use shaper_tests::stage::Stage;

/// A lane with nothing wrong with it, over a port where nobody has to listen.
fn sound() -> LaneFile {
    LaneFile::over(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 4000))])
}

/// Exit code 1 and one error that has all of `words`.
fn assert_refused(finished: &Finished, words: &[&str]) -> Result<()> {
    let said = format!("{}{}", finished.stdout, finished.stderr);
    assert_eq!(finished.exit_code()?, 1, "exit code; it said:\n{said}");
    let errors = said
        .lines()
        .filter(|line| line.to_lowercase().starts_with("error"))
        .count();
    assert_eq!(errors, 1, "errors in:\n{said}");
    assert!(!said.contains("panicked"), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in:\n{said}");
    }
    Ok(())
}

/// The builder's controller is refused and leaves nothing in the kernel.
fn refused(
    words: &[&str],
    break_it: impl FnOnce(ControllerBuilder) -> Result<ControllerBuilder>,
) -> Result<()> {
    let stage = Stage::set()?;
    let before = LoadedPrograms::now()?;
    let controller = break_it(Controller::builder(&stage)?)?;
    assert_refused(&controller.run_to_its_end()?, words)?;
    before.ensure_nothing_left(stage.cgroups())
}

/// E9: a typo is never silently a default.
#[test]
fn an_unknown_key_is_refused_with_its_place_and_the_key_that_was_meant() -> Result<()> {
    refused(
        &["typo.toml:6", "max_inflght", "max_inflight"],
        |controller| controller.lane("typo", sound().line("max_inflght = 3")),
    )
}

/// E9.
#[test]
fn a_value_of_the_wrong_type_is_refused_with_its_place() -> Result<()> {
    refused(&["wrong.toml:6", "interactive_reserve"], |controller| {
        controller.lane("wrong", sound().line("interactive_reserve = \"one\""))
    })
}

/// A1: an endpoint belongs to one lane.
#[test]
fn two_lanes_over_one_endpoint_are_refused_by_both_names() -> Result<()> {
    refused(&["endpoints", "first", "second"], |controller| {
        controller.lane("first", sound())?.lane("second", sound())
    })
}

#[test]
fn a_directory_that_is_not_there_is_refused_by_its_name() -> Result<()> {
    const MISSING: &str = "/nonexistent/shaper";
    refused(&[MISSING], |controller| {
        controller.config_at(Path::new(MISSING))
    })
}

/// E9: a level that is none does not silence the log.
#[test]
fn a_log_filter_that_means_nothing_is_refused_with_what_would() -> Result<()> {
    refused(
        &["SHAPER_LOG", "warning", "error, warn, info"],
        |controller| {
            let controller = controller.lane("sound", sound())?;
            Ok(controller.environment("SHAPER_LOG", "warning"))
        },
    )
}

#[test]
fn a_token_that_is_not_there_is_refused_before_anything_is_loaded() -> Result<()> {
    const MISSING: &str = "/nonexistent/token";
    refused(&[MISSING, "openssl rand"], |controller| {
        controller
            .lane("sound", sound())?
            .settings(&format!("token_file = {MISSING:?}"))
    })
}

#[test]
fn a_user_without_privileges_is_told_which_are_missing() -> Result<()> {
    refused(&["CAP_BPF"], |controller| {
        controller.lane("sound", sound())?.as_nobody()
    })
}

#[test]
fn a_host_without_cgroup2_is_told_to_mount_it() -> Result<()> {
    refused(&["cgroup2"], |controller| {
        controller.lane("sound", sound())?.without_cgroup2()
    })
}

/// C1: one authority per host; a second one refuses to start and says where the first is.
#[test]
fn a_second_controller_of_an_instance_is_told_of_the_first_which_goes_on() -> Result<()> {
    let stage = Stage::set()?;
    let before = LoadedPrograms::now()?;
    let first = Controller::builder(&stage)?
        .lane("sound", sound())?
        .start()?;
    let with_the_first = LoadedPrograms::now()?;

    assert_refused(&first.run_second()?, &[&first.pid().to_string()])?;
    with_the_first.ensure_nothing_more()?;
    assert_eq!(
        first.lane("sound")?.limit,
        1,
        "the first controller still answers"
    );
    first.stop()?;
    before.ensure_nothing_left(stage.cgroups())
}
