//! Promises of whole lanes, each told as a small story with a made-up clock.
