//! The paths and what they answer.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{
        HeaderMap, StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE},
    },
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Serialize;
use serde_json::json;

use super::{Shared, changes, origin, page, unavailable};
use crate::{handle::HandleError, metrics};

const INDEX: &str = "\
shaper

/api/lanes    the lanes as JSON, as `shaper status --json` shows them
/api/waiters  who waits in them, the first in line first
/api/live     both once a second, as server-sent events
/metrics      the lanes and more for Prometheus
/healthz      whether the controller's loop answers
";

/// What is served is true for a moment only.
const JSON: (axum::http::HeaderName, &str) = (CONTENT_TYPE, "application/json");
const NOT_STORED: (axum::http::HeaderName, &str) = (CACHE_CONTROL, "no-store");

/// `local`: the listener is on loopback.
pub(super) fn router(shared: Shared, local: bool) -> Router {
    let router = Router::new()
        .route(
            "/",
            get(async |headers: HeaderMap| page::root(headers, INDEX).await),
        )
        .route("/api/lanes", get(lanes))
        .route("/api/waiters", get(waiters))
        .route("/api/live", get(live))
        .route("/metrics", get(scrape))
        .route("/healthz", get(health))
        .merge(page::files())
        .merge(changes::routes(shared.token.clone()))
        .fallback(async || (StatusCode::NOT_FOUND, INDEX))
        .with_state(shared);
    if local {
        router.layer(middleware::from_fn(origin::local_only))
    } else {
        router
    }
}

async fn live(State(shared): State<Shared>) -> Response {
    shared.live.stream(shared.token.is_some())
}

async fn lanes(State(shared): State<Shared>) -> Response {
    document(shared.handle.snapshot().await)
}

async fn waiters(State(shared): State<Shared>) -> Response {
    document(shared.handle.waiters().await)
}

fn document<T: Serialize>(answer: Result<Arc<T>, HandleError>) -> Response {
    let (status, text) = match answer {
        Ok(answer) => (StatusCode::OK, serde_json::to_string(&*answer)),
        Err(error) => (
            StatusCode::SERVICE_UNAVAILABLE,
            Ok(json!({"error": error.to_string()}).to_string()),
        ),
    };
    match text {
        // With an end of line: people ask by curl.
        Ok(text) => (status, [NOT_STORED, JSON], text + "\n").into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
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
