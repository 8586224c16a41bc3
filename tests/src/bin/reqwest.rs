//! One chat completion with reqwest's default client: prints the answer's body.
//! `shaper-test-reqwest BASE_URL LABEL`.

use std::env;

use anyhow::{Context, Result, anyhow};
use reqwest::blocking::Client;
use reqwest::header::CONTENT_TYPE;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [base_url, label] = arguments.as_slice() else {
        return Err(anyhow!("usage: shaper-test-reqwest BASE_URL LABEL"));
    };
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow!("there is a TLS provider already"))?;
    let request = serde_json::json!({
        "model": "stub",
        "messages": [{"role": "user", "content": "word ".repeat(100)}],
    });
    // By default the blocking client gives up on an answer after 30 s. A program that asks a model waits for minutes, as
    // the SDKs do.
    let client = Client::builder().timeout(None).build()?;
    let answer = client
        .post(format!("{base_url}/v1/chat/completions"))
        .header(CONTENT_TYPE, "application/json")
        .header("X-Label", label)
        .body(request.to_string())
        .send()
        .and_then(reqwest::blocking::Response::error_for_status)
        .context("the call failed")?;
    println!("{}", answer.text()?);
    Ok(())
}
