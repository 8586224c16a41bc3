//! The paths and what they answer.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State,
    http::{
        StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Serialize;
use serde_json::json;

use crate::{
    handle::{Handle, HandleError},
    metrics::{self, Metrics},
};

const INDEX: &str = "\
shaper

/api/lanes    the lanes as JSON, as `shaper status --json` shows them
/api/waiters  who waits in them, the first in line first
/metrics      the lanes and more for Prometheus
/healthz      whether the controller's loop answers
";

/// What is served is true for a moment only.
const NOT_STORED: (axum::http::HeaderName, &str) = (CACHE_CONTROL, "no-store");

#[derive(Clone)]
struct Shared {
    handle: Handle,
    metrics: Arc<Metrics>,
}

pub(super) fn router(handle: Handle, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/", get(INDEX))
        .route("/api/lanes", get(lanes))
        .route("/api/waiters", get(waiters))
        .route("/metrics", get(scrape))
        .route("/healthz", get(health))
        .fallback(async || (StatusCode::NOT_FOUND, INDEX))
        .with_state(Shared { handle, metrics })
}

async fn lanes(State(shared): State<Shared>) -> Response {
    document(shared.handle.snapshot().await)
}

async fn waiters(State(shared): State<Shared>) -> Response {
    document(shared.handle.waiters().await)
}

fn document<T: Serialize>(answer: Result<Arc<T>, HandleError>) -> Response {
    match answer {
        Ok(answer) => ([NOT_STORED], Json(&*answer)).into_response(),
        Err(error) => (
            StatusCode::SERVICE_UNAVAILABLE,
            [NOT_STORED],
            Json(json!({"error": error.to_string()})),
        )
            .into_response(),
    }
}

/// Without the controller's answer there are no gauges, and half a scrape would look like a host at rest: none at all.
async fn scrape(State(shared): State<Shared>) -> Response {
    let snapshot = match shared.handle.snapshot().await {
        Ok(snapshot) => snapshot,
        Err(error) => return unavailable(&error),
    };
    match shared.metrics.render(&snapshot) {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => unavailable(&error),
    }
}

async fn health(State(shared): State<Shared>) -> Response {
    match shared.handle.snapshot().await {
        Ok(_) => ([NOT_STORED], "ok\n").into_response(),
        Err(error) => unavailable(&error),
    }
}

fn unavailable(error: &dyn std::error::Error) -> Response {
    (
        StatusCode::SERVICE_UNAVAILABLE,
        [NOT_STORED],
        format!("{error}\n"),
    )
        .into_response()
}
