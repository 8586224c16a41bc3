//! The two dialects that model gateways speak, as far as SDKs parse them: OpenAI's chat completions and Anthropic's
//! messages, whole or as server-sent events.

use std::time::Duration;

use serde_json::{Value, json};

use crate::gateway::{Answer, Request};

/// What the model says, whatever it is asked.
pub const TEXT: &str = "a slower answer, and nothing but an answer";

/// How a client wants its answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Delivery {
    /// One JSON document.
    Whole,
    /// Server-sent events.
    Stream,
}

/// The answer to a model call after `service_time`, in the dialect of the request's path.
///
/// # Panics
/// If the path belongs to neither: the stub was told to serve models and nothing else.
pub fn answer(request: &Request, delivery: Delivery, service_time: Duration) -> Answer {
    let answer = Answer::after(service_time);
    let stream = |events| answer.clone().event_stream(events, Duration::ZERO);
    match (request.path.as_str(), delivery) {
        ("/v1/chat/completions", Delivery::Whole) => answer.json(&chat_completion()),
        ("/v1/chat/completions", Delivery::Stream) => stream(chat_completion_events()),
        ("/v1/messages", Delivery::Whole) => answer.json(&message()),
        ("/v1/messages", Delivery::Stream) => stream(message_events()),
        (path, _) => panic!("{path} is no call of a model"),
    }
}

fn chat_completion() -> Value {
    json!({
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "stub",
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": TEXT},
            "finish_reason": "stop",
        }],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    })
}

/// A role, a word at a time, and the end.
fn chat_completion_events() -> Vec<String> {
    let chunk = |delta: Value, finish_reason: Option<&str>| {
        let chunk = json!({
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": "stub",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
        });
        format!("data: {chunk}\n\n")
    };
    let mut events = vec![chunk(json!({"role": "assistant", "content": ""}), None)];
    events.extend(words().map(|word| chunk(json!({"content": word}), None)));
    events.push(chunk(json!({}), Some("stop")));
    events.push("data: [DONE]\n\n".to_owned());
    events
}

fn message() -> Value {
    json!({
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "stub",
        "content": [{"type": "text", "text": TEXT}],
        "stop_reason": "end_turn",
        "stop_sequence": null,
        "usage": {"input_tokens": 100, "output_tokens": 10},
    })
}

fn message_events() -> Vec<String> {
    let event = |kind: &str, mut data: Value| {
        data["type"] = kind.into();
        format!("event: {kind}\ndata: {data}\n\n")
    };
    let mut begun = message();
    begun["content"] = json!([]);
    begun["stop_reason"] = Value::Null;
    let mut events = vec![
        event("message_start", json!({"message": begun})),
        event(
            "content_block_start",
            json!({"index": 0, "content_block": {"type": "text", "text": ""}}),
        ),
    ];
    events.extend(words().map(|word| {
        let delta = json!({"index": 0, "delta": {"type": "text_delta", "text": word}});
        event("content_block_delta", delta)
    }));
    events.extend([
        event("content_block_stop", json!({"index": 0})),
        event(
            "message_delta",
            json!({
                "delta": {"stop_reason": "end_turn", "stop_sequence": null},
                "usage": {"output_tokens": 10},
            }),
        ),
        event("message_stop", json!({})),
    ]);
    events
}

fn words() -> impl Iterator<Item = &'static str> {
    TEXT.split_inclusive(' ')
}
