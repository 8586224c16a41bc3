//! Keeps web pages of others from reading the controller through a browser on this host.
//!
//! A page may let its own name resolve to 127.0.0.1 once it is loaded (DNS rebinding), and the browser takes what is here
//! for its own. Such a request carries that name as its host, which no honest one to a loopback address does.

use std::net::IpAddr;

use axum::{
    extract::Request,
    http::{StatusCode, header::HOST, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};

/// Answers only requests to an address or to `localhost`. For listeners on loopback: elsewhere hosts have names.
pub async fn local_only(request: Request, next: Next) -> Response {
    let foreign = request
        .headers()
        .get_all(HOST)
        .iter()
        .any(|host| !host.to_str().is_ok_and(is_local));
    if foreign {
        let message = "shaper answers here to localhost and addresses only: another name could be a web page's, \
                       which your browser would let read this\n";
        return (StatusCode::MISDIRECTED_REQUEST, message).into_response();
    }
    next.run(request).await
}

fn is_local(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    address.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::tests::{Loop, ask, with_token};

    #[test]
    fn names_of_others_are_not_local() {
        for host in [
            "127.0.0.1:9797",
            "localhost",
            "LOCALHOST:80",
            "shaper.localhost:1",
            "[::1]:9797",
            "10.1.2.3",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example:9797",
            "localhost.evil.example",
            "",
            "user@localhost.evil.example",
            "notlocalhost",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }

    /// A page whose name leads here sees nothing; a scraper without a name does.
    #[test]
    fn a_rebound_name_reads_nothing() {
        with_token(Loop::Answers, None, |server, _| {
            for path in ["/", "/api/lanes", "/api/live", "/metrics"] {
                let answer = ask(
                    server,
                    &format!("GET {path}"),
                    &["host: evil.example:9797"],
                    "",
                );
                assert!(answer.starts_with("HTTP/1.1 421"), "{path}: {answer}");
                assert!(!answer.contains("reasoning"), "{path}: {answer}");
            }
            let address = format!("host: {}", server.addr());
            let answer = ask(server, "GET /api/lanes", &[&address], "");
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        });
    }
}
