//! Clients that do what well-behaved libraries do not, as short Python programs.

use serde::de::DeserializeOwned;

use crate::client::{Client, PythonReport, python};
use crate::gateway::Gateway;

/// Connections, requests, responses and the report, for every program.
const PRELUDE: &str = include_str!("../clients/prelude.py");

/// A Python program that finds in `tests/clients/prelude.py` what it needs to call `gateway`, and prints one JSON
/// document of the form of `R`. Its further arguments are `ARGUMENTS`.
pub fn script<R: DeserializeOwned>(
    name: &str,
    gateway: &Gateway,
    program: &str,
) -> Client<PythonReport<R>> {
    let address = gateway.address();
    python(name, &format!("{PRELUDE}\n\n{program}"))
        .argument(address.ip().to_string())
        .argument(address.port().to_string())
        .argument(gateway.certificate().unwrap_or_default())
}
