//! The live page: three small files in the binary, and nothing from anywhere else.

use axum::{
    Router,
    http::{
        HeaderMap, HeaderName, HeaderValue,
        header::{
            ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
            X_CONTENT_TYPE_OPTIONS,
        },
    },
    response::{IntoResponse, Response},
    routing::get,
};

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// The page loads its own two files and talks to its own host. Nothing inline runs, nobody may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page's files besides itself.
pub fn files<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route(
            "/page.css",
            get(async || file("text/css; charset=utf-8", STYLE)),
        )
        .route(
            "/page.js",
            get(async || file("text/javascript; charset=utf-8", SCRIPT)),
        )
}

/// The page for browsers; for others, which do not ask for HTML, `index`.
pub async fn root(headers: HeaderMap, index: &'static str) -> Response {
    let asks_for_html = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|accept| accept.to_str().ok())
        .any(|accept| accept.contains("text/html"));
    let mut response = if asks_for_html {
        file("text/html; charset=utf-8", PAGE)
    } else {
        index.into_response()
    };
    response
        .headers_mut()
        .insert(VARY, HeaderValue::from_static("accept"));
    response
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, &str); 5] = [
        (CONTENT_TYPE, kind),
        // Another version of shaper has other files at the same paths.
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::tests::{Loop, ask, body, with_token};

    /// The page works on a host without internet.
    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        for text in [PAGE, STYLE, SCRIPT] {
            for elsewhere in ["http://", "https://", "//cdn", "@import", "import("] {
                let found = text
                    .match_indices(elsewhere)
                    // The name of a format, which nobody loads.
                    .filter(|(at, _)| !text[*at..].starts_with("http://www.w3.org/2000/svg"));
                assert_eq!(found.count(), 0, "{elsewhere}");
            }
        }
    }

    /// The policy forbids what is inline: it would silently not work. And text from processes never becomes markup.
    #[test]
    fn the_page_keeps_its_own_policy() {
        for inline in ["<style", "style=", "onclick", "<script>"] {
            assert!(!PAGE.contains(inline), "{inline}");
        }
        for unsafe_way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "eval("] {
            assert!(!SCRIPT.contains(unsafe_way), "{unsafe_way}");
        }
    }

    /// A browser gets the page, a command line the paths.
    #[test]
    fn the_root_answers_in_the_form_that_is_asked_for() {
        with_token(Loop::Answers, None, |server, _| {
            let html = ask(
                server,
                "GET /",
                &["host: localhost", "accept: text/html,*/*;q=0.8"],
                "",
            );
            assert!(body(&html).starts_with("<!doctype html>"), "{html}");
            assert!(html.contains(POLICY), "{html}");
            let text = ask(server, "GET /", &["host: localhost", "accept: */*"], "");
            assert!(body(&text).starts_with("shaper\n"), "{text}");
            for path in ["/page.css", "/page.js"] {
                let file = ask(server, &format!("GET {path}"), &["host: localhost"], "");
                assert!(file.starts_with("HTTP/1.1 200"), "{path}: {file}");
            }
        });
    }
}
