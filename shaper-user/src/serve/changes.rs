//! Changes over HTTP, for those who have the token.
//!
//! The token is sent as `Authorization: Bearer`, which a browser never adds by itself: a page of somebody else cannot
//! make it act (CSRF), and cannot send the header without asking first (CORS), which is answered with no.

use std::time::Duration;

use axum::{
    Json, Router,
    extract::{Path, Request, State, rejection::JsonRejection},
    http::{
        HeaderValue, StatusCode,
        header::{AUTHORIZATION, WWW_AUTHENTICATE},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::post,
};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::{Shared, token::Token};
use crate::{
    config::Setting,
    format,
    handle::{CommandError, HandleError},
    pause,
};

pub(super) fn routes(token: Option<Token>) -> Router<Shared> {
    Router::new()
        .route("/api/lanes/{lane}/pause", post(begin_pause))
        .route("/api/lanes/{lane}/resume", post(resume))
        .route("/api/lanes/{lane}/set", post(set))
        .route_layer(middleware::from_fn_with_state(token, authorize))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseBody {
    /// As `shaper pause --for`.
    #[serde(rename = "for")]
    length: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetBody {
    key: String,
    value: String,
}

async fn begin_pause(
    State(shared): State<Shared>,
    Path(lane): Path<String>,
    body: Result<Json<PauseBody>, JsonRejection>,
) -> Response {
    let length: Duration = match body {
        Ok(Json(body)) => match pause::length(&body.length) {
            Ok(length) => length,
            Err(error) => return refused(StatusCode::BAD_REQUEST, &error),
        },
        Err(error) => return refused(error.status(), &error.body_text()),
    };
    info!(lane, length = format::duration(length), "pause over HTTP");
    let pause = shared.handle.pause(lane.clone(), length).await;
    let said = pause.map(|pause| pause.told(&lane, length, Timestamp::now()));
    answer(said.map(|said| json!({"said": said})))
}

async fn resume(State(shared): State<Shared>, Path(lane): Path<String>) -> Response {
    info!(lane, "resume over HTTP");
    let resumed = shared.handle.resume(lane).await;
    answer(resumed.map(|()| json!({})))
}

async fn set(
    State(shared): State<Shared>,
    Path(lane): Path<String>,
    body: Result<Json<SetBody>, JsonRejection>,
) -> Response {
    let Json(SetBody { key, value }) = match body {
        Ok(body) => body,
        Err(error) => return refused(error.status(), &error.body_text()),
    };
    info!(lane, key, value, "set over HTTP");
    let setting = Setting { key, value };
    let warnings = shared.handle.set(lane, vec![setting]).await;
    answer(warnings.map(|warnings| json!({"warnings": warnings})))
}

/// Lets only those on who may change something.
async fn authorize(State(token): State<Option<Token>>, request: Request, next: Next) -> Response {
    let Some(token) = token else {
        return refused(
            StatusCode::FORBIDDEN,
            "HTTP only shows: set token_file in shaper.toml to change lanes here, or use `shaper pause`, `resume` and `set`",
        );
    };
    let sent = request
        .headers()
        .get(AUTHORIZATION)
        .map(HeaderValue::as_bytes)
        .and_then(|value| value.strip_prefix(b"Bearer "));
    match sent {
        Some(sent) if token.is(sent) => next.run(request).await,
        sent => {
            if sent.is_some() {
                warn!("a change over HTTP was refused: its token is wrong");
            }
            let why = "send the token of token_file as `Authorization: Bearer TOKEN`";
            let mut denied = refused(StatusCode::UNAUTHORIZED, why);
            denied
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            denied
        }
    }
}

fn answer(result: Result<Value, HandleError>) -> Response {
    match result {
        Ok(done) => Json(done).into_response(),
        Err(error) => {
            let status = match &error {
                HandleError::Command(CommandError::UnknownLane { .. }) => StatusCode::NOT_FOUND,
                HandleError::Command(CommandError::Refused(_)) => StatusCode::BAD_REQUEST,
                HandleError::NoAnswer(_) | HandleError::Gone => StatusCode::SERVICE_UNAVAILABLE,
            };
            refused(status, &error.to_string())
        }
    }
}

fn refused(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({"error": why}))).into_response()
}

#[cfg(test)]
mod tests {
    use crate::serve::{
        Server,
        tests::{Loop, ask, with_token},
        token::samples::{TOKEN, token},
    };

    const PAUSE: &str = "POST /api/lanes/reasoning/pause";
    const FOR_30S: &str = r#"{"for": "30s"}"#;

    fn change(server: &Server, request: &str, token: Option<&str>, body: &str) -> String {
        let authorization = token.map(|token| format!("authorization: Bearer {token}"));
        let mut headers = vec!["host: localhost", "content-type: application/json"];
        headers.extend(authorization.as_deref());
        ask(server, request, &headers, body)
    }

    fn status(response: &str) -> &str {
        response.split(' ').nth(1).unwrap()
    }

    /// Off unless configured, whatever is sent.
    #[test]
    fn without_a_token_file_nothing_can_be_changed() {
        with_token(Loop::Answers, None, |server, _| {
            for sent in [None, Some(""), Some(TOKEN)] {
                let answer = change(server, PAUSE, sent, FOR_30S);
                assert_eq!(status(&answer), "403", "{answer}");
                assert!(answer.contains("token_file"), "{answer}");
            }
            let answer = change(server, "GET /api/lanes/reasoning/pause", None, "");
            assert_eq!(status(&answer), "403", "{answer}");
        });
    }

    #[test]
    fn only_the_token_opens() {
        with_token(Loop::Answers, Some(token()), |server, _| {
            for sent in [None, Some(""), Some("0123456789abcdeg")] {
                let answer = change(server, PAUSE, sent, FOR_30S);
                assert_eq!(status(&answer), "401", "{sent:?}: {answer}");
            }
            for (request, body, told) in [
                (PAUSE, FOR_30S, "paused for 9m59s more already"),
                ("POST /api/lanes/reasoning/resume", "", "{}"),
                (
                    "POST /api/lanes/reasoning/set",
                    r#"{"key": "max_inflight", "value": "400"}"#,
                    "`max_inflight`: much",
                ),
            ] {
                let answer = change(server, request, Some(TOKEN), body);
                assert_eq!(status(&answer), "200", "{request}: {answer}");
                assert!(answer.contains(told), "{request}: {answer}");
            }
        });
    }

    /// E9: what cannot be done is said, and by the status too.
    #[test]
    fn a_mistake_is_told_by_its_kind() {
        with_token(Loop::Answers, Some(token()), |server, _| {
            for (request, body, expected, word) in [
                (PAUSE, r#"{"for": "soon"}"#, "400", "1h30m"),
                (PAUSE, r#"{"for": "30s", "form": 1}"#, "422", "form"),
                (PAUSE, "", "400", "JSON"),
                ("POST /api/lanes/nowhere/resume", "", "404", "reasoning"),
                (
                    "POST /api/lanes/reasoning/set",
                    r#"{"key": "max_inflight", "value": "many"}"#,
                    "400",
                    "max_inflight",
                ),
            ] {
                let answer = change(server, request, Some(TOKEN), body);
                assert_eq!(status(&answer), expected, "{body}: {answer}");
                assert!(answer.contains(word), "{body}: {answer}");
            }
        });
    }
}
