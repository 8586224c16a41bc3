//! The clients that people call models with, each making one call with its settings untouched.
//!
//! They are real: `curl`, the vendors' SDKs, and the usual HTTP libraries of Go and Rust. What `cargo xtask setup`
//! installs for them is pinned to the version.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tempfile::NamedTempFile;

use crate::client::{Client, Report, parse};
use crate::gateway::Gateway;
use crate::model_api::Delivery;
use crate::process::Finished;
use crate::tools;

/// What calls a model, and how it wants the answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Caller {
    Curl,
    /// `net/http`.
    Go,
    /// `reqwest` with rustls.
    Reqwest,
    Sdk(Sdk, Delivery),
}

/// A vendor's library.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sdk {
    OpenAiPython,
    AnthropicPython,
    OpenAiNode,
    AnthropicNode,
}

impl Caller {
    /// How the gateway is asked to deliver.
    pub fn delivery(self) -> Delivery {
        match self {
            Self::Curl | Self::Go | Self::Reqwest => Delivery::Whole,
            Self::Sdk(_, delivery) => delivery,
        }
    }

    /// One call. The label ends up in the gateway's log.
    ///
    /// # Errors
    /// If the program, or what it needs, is not installed.
    pub fn call(self, target: &Target, label: &str) -> Result<Client<ModelCallReport>> {
        let mut command = match self {
            Self::Curl => curl(target, label),
            Self::Go => plain(tools::installed_client("go/call")?, target, label),
            Self::Reqwest => plain(tools::reqwest()?, target, label),
            Self::Sdk(sdk, delivery) => sdk.command(delivery, target, label)?,
        };
        target.prepare(&mut command);
        Ok(Client::new(format!("{self:?}"), command))
    }
}

impl Sdk {
    fn command(self, delivery: Delivery, target: &Target, label: &str) -> Result<Command> {
        let (mut command, script) = match self {
            Self::OpenAiPython => (python()?, "python/openai_call.py"),
            Self::AnthropicPython => (python()?, "python/anthropic_call.py"),
            Self::OpenAiNode => (node()?, "node/openai_call.cjs"),
            Self::AnthropicNode => (node()?, "node/anthropic_call.cjs"),
        };
        command
            .arg(tools::client_source(script))
            .args([&target.base_url, label])
            .arg(match delivery {
                Delivery::Whole => "whole",
                Delivery::Stream => "stream",
            });
        Ok(command)
    }
}

fn python() -> Result<Command> {
    let mut command = Command::new(tools::installed_client("python/bin/python")?);
    // Nothing is written beside the sources: what root leaves there a developer cannot remove.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}

fn node() -> Result<Command> {
    let mut command = Command::new("node");
    command.env("NODE_PATH", tools::installed_client("node/node_modules")?);
    Ok(command)
}

/// Where to call, and whom to trust there.
#[derive(Debug)]
pub struct Target {
    base_url: String,
    /// The gateway's certificate in PEM form.
    certificate: Option<NamedTempFile>,
}

impl Target {
    /// The first address of `gateway`.
    pub fn of(gateway: &Gateway) -> Result<Self> {
        let scheme = match gateway.certificate() {
            Some(_) => "https",
            None => "http",
        };
        let certificate = gateway
            .certificate()
            .map(|pem| {
                let file = NamedTempFile::new()?;
                fs::write(&file, pem)?;
                std::io::Result::Ok(file)
            })
            .transpose()
            .context("cannot write the gateway's certificate")?;
        Ok(Self {
            base_url: format!("{scheme}://{}", gateway.address()),
            certificate,
        })
    }

    /// Every client by the environment variable it heeds; none of them by a proxy.
    fn prepare(&self, command: &mut Command) {
        const PROXIES: [&str; 3] = ["http_proxy", "https_proxy", "all_proxy"];
        const TRUST: [&str; 3] = [
            "CURL_CA_BUNDLE",
            "NODE_EXTRA_CA_CERTS",
            // OpenSSL, and so Python; Go; rustls by way of the platform's verifier.
            "SSL_CERT_FILE",
        ];
        for name in PROXIES {
            command.env_remove(name).env_remove(name.to_uppercase());
        }
        if let Some(certificate) = &self.certificate {
            for name in TRUST {
                command.env(name, certificate.path());
            }
        }
    }
}

fn curl(target: &Target, label: &str) -> Command {
    let mut command = Command::new("curl");
    let prompt = "word ".repeat(100);
    command
        .args(["-q", "--silent", "--show-error", "--fail-with-body"])
        .args(["--header", "Content-Type: application/json"])
        .args(["--header", &format!("X-Label: {label}")])
        .arg("--data-raw")
        .arg(format!(
            r#"{{"model": "stub", "messages": [{{"role": "user", "content": "{prompt}"}}]}}"#
        ))
        .arg(format!("{}/v1/chat/completions", target.base_url));
    command
}

fn plain(program: PathBuf, target: &Target, label: &str) -> Command {
    let mut command = Command::new(program);
    command.args([&target.base_url, label]);
    command
}

/// What a call brought.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ModelCallReport {
    /// What the model said.
    pub text: String,
    /// What the SDK logged about retrying; nothing if the client does not retry by itself.
    pub retries: Vec<String>,
}

impl Report for ModelCallReport {
    fn read(finished: &Finished) -> Result<Self> {
        /// The programs on top of an SDK report; the others print the chat completion as it came.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Printed {
            Report { text: String, retries: Vec<String> },
            Completion { choices: [Choice; 1] },
        }
        #[derive(Deserialize)]
        struct Choice {
            message: Message,
        }
        #[derive(Deserialize)]
        struct Message {
            content: String,
        }
        ensure!(
            finished.exit_code()? == 0,
            "the call failed; the client said:\n{}{}",
            finished.stdout,
            finished.stderr
        );
        Ok(match parse(finished)? {
            Printed::Report { text, retries } => Self { text, retries },
            Printed::Completion {
                choices: [Choice { message }],
            } => Self {
                text: message.content,
                retries: Vec::new(),
            },
        })
    }
}
