#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| shaper_user::fuzz::dns(input));
