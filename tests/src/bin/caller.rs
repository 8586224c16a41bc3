//! Makes the calls it is ordered to (`shaper_tests::caller`): `shaper-test-caller ORDERS`, which are JSON. Prints what
//! became of each.

use std::env;
use std::thread::sleep;

use anyhow::{Context, Result};
use serde_json::json;
use shaper_tests::caller::Orders;
use shaper_tests::clock::Moment;
use ureq::Agent;

/// A prompt: longer than any `wake_bytes`.
const PROMPT_WORDS: usize = 200;

fn main() -> Result<()> {
    let orders = env::args()
        .nth(1)
        .context("usage: shaper-test-caller ORDERS")?;
    let orders: Orders = serde_json::from_str(&orders).context("unreadable orders")?;
    let agent: Agent = Agent::config_builder()
        .proxy(None)
        .timeout_connect(Some(orders.timeout))
        .timeout_recv_response(Some(orders.timeout))
        .build()
        .into();
    let mut chance = Chance(orders.seed);
    let mut calls = Vec::new();
    for number in 0..orders.calls {
        if number > 0 {
            sleep(orders.think);
        }
        calls.push(call(&agent, &orders, &mut chance));
    }
    println!("{}", serde_json::Value::from(calls));
    Ok(())
}

fn call(agent: &Agent, orders: &Orders, chance: &mut Chance) -> serde_json::Value {
    let started = Moment::now();
    let mut timeouts = 0;
    let mut attempts = 0;
    let answered = loop {
        attempts += 1;
        match attempt(agent, orders) {
            Ok(()) => break true,
            Err(ureq::Error::Timeout(_)) => timeouts += 1,
            Err(_) => {}
        }
        if attempts > orders.retries {
            break false;
        }
        let pause = orders.backoff * 2u32.pow(attempts - 1);
        sleep(pause - pause.mul_f64(chance.share() / 4.0));
    };
    json!({
        "started": started.as_nanos(),
        "ended": Moment::now().as_nanos(),
        "attempts": attempts,
        "timeouts": timeouts,
        "answered": answered,
    })
}

fn attempt(agent: &Agent, orders: &Orders) -> Result<(), ureq::Error> {
    let prompt = json!({"messages": [{"role": "user", "content": "word ".repeat(PROMPT_WORDS)}]});
    let mut answer = agent
        .post(&orders.url)
        .header("Content-Type", "application/json")
        .header("X-Label", &orders.label)
        .send(prompt.to_string())?;
    answer.body_mut().read_to_vec().map(drop)
}

/// The same chances for the same seed: SplitMix64.
struct Chance(u64);

impl Chance {
    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
    }
}
