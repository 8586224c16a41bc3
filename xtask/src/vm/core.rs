//! Which of the end-to-end tests run on every kernel: one for each thing that shaper asks of a
//! kernel. `shaper doctor` comes before them.

use anyhow::{Context, Result};

use super::guest::Suite;
use crate::{executables::Executable, test::is_end_to_end};

/// The tests by suite.
const CORE: &[(&str, &[&str])] = &[
    // Hold and refuse in the connect programs; replay; order.
    (
        "admission",
        &[
            "an_interactive_client_goes_before_queued_bulk_and_bulk_keeps_its_order",
            "of_forty_clients_six_are_in_flight_eight_wait_and_the_rest_are_refused",
        ],
    ),
    // Holding requests, the probe that lets them go on, orphans, namespaces.
    (
        "held_requests",
        &[
            "a_gateway_that_closes_while_a_request_waits_ends_the_waiter",
            "a_held_request_outlasts_a_low_tcp_retries2",
            "the_gateway_never_sees_a_byte_of_a_killed_clients_request",
        ],
    ),
    // Parking and resuming.
    (
        "keep_alive",
        &["agents_that_run_tools_between_calls_hold_no_slot"],
    ),
    // Links that go with the controller.
    (
        "lifecycle",
        &["every_held_connect_goes_on_when_the_controller_is_killed"],
    ),
    // Datagrams.
    ("other_transports", &["datagrams_to_a_lane_are_refused"]),
    // Destroying sockets.
    (
        "policy_bounds",
        &["a_waiter_is_ended_at_the_queue_timeout_of_its_class_and_the_log_says_so"],
    ),
    // Pinned maps and links, programs replaced in place, the held SYN sent by another controller.
    (
        "restart",
        &[
            "held_connects_stay_held_when_a_controller_is_killed_and_are_served_by_the_next",
            "maps_of_another_abi_are_drained_and_replaced",
        ],
    ),
    // Following responses.
    (
        "response_end",
        &[
            "a_content_length_gives_the_slot_back_at_once",
            "a_last_chunk_in_a_record_of_its_own_gives_the_slot_back_at_once_over_tls_1_3",
        ],
    ),
    // Sockets that connect again.
    (
        "rough_clients",
        &["a_socket_that_connects_again_is_governed_again"],
    ),
    // Release on a process's death.
    (
        "vanishing_clients",
        &["a_client_killed_while_it_holds_a_slot_gives_it_to_the_next"],
    ),
];

/// The core, from what cargo has built.
///
/// # Errors
/// A suite is not there.
pub fn suites(executables: &[Executable]) -> Result<Vec<Suite>> {
    CORE.iter()
        .map(|&(name, tests)| {
            let executable = executables
                .iter()
                .find(|executable| is_end_to_end(executable) && executable.name == name)
                .with_context(|| format!("cargo has built no end-to-end suite `{name}`"))?;
            let mut suite = suite(executable, tests);
            suite.arguments.push("--exact".to_owned());
            suite.expected = tests.len() as u64;
            Ok(suite)
        })
        .collect()
}

/// All end-to-end suites, for the tests whose name contains `filter`.
pub fn matching(executables: &[Executable], filter: &str) -> Vec<Suite> {
    executables
        .iter()
        .filter(|executable| is_end_to_end(executable))
        .map(|executable| suite(executable, &[filter]))
        .collect()
}

fn suite(executable: &Executable, tests: &[&str]) -> Suite {
    let mut arguments = vec!["--test-threads=1".to_owned(), "--color=never".to_owned()];
    arguments.extend(tests.iter().map(|&test| test.to_owned()));
    Suite {
        name: executable.name.clone(),
        program: executable.path.clone(),
        directory: executable.package.clone(),
        arguments,
        expected: 0,
    }
}
