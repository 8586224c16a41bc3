//! How values are shown to people.

use std::{borrow::Cow, fmt::Display, time::Duration};

use anstyle::Style;
use jiff::Timestamp;

/// A duration in at most six characters up to 99 days: `0s`, `40ms`, `1.4s`, `38s`, `3m32s`, `1h02m`, `2d03h`.
///
/// Rounded down, so that nothing seems to have lasted longer than it has.
pub fn duration(value: Duration) -> String {
    let seconds = value.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    if value.is_zero() {
        "0s".into()
    } else if seconds == 0 {
        format!("{}ms", value.as_millis())
    } else if seconds < 10 {
        format!("{seconds}.{}s", value.subsec_millis() / 100)
    } else if minutes == 0 {
        format!("{seconds}s")
    } else if hours == 0 {
        format!("{minutes}m{:02}s", seconds % 60)
    } else if days == 0 {
        format!("{hours}h{:02}m", minutes % 60)
    } else {
        format!("{days}d{:02}h", hours % 24)
    }
}

/// A moment as in `2026-01-02T03:04:05Z`: whole seconds are enough for people.
pub fn moment(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `text` without control characters.
///
/// Account and process names come from cgroups and processes, which may put terminal escapes in them.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().any(char::is_control) {
        text.chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect::<String>()
            .into()
    } else {
        text.into()
    }
}

/// `text`, printable, in at most `width` characters; what was cut off shows as `…`.
pub fn clip(text: &str, width: usize) -> String {
    let text = printable(text);
    if text.chars().count() <= width {
        return text.into_owned();
    }
    let mut clipped: String = text.chars().take(width.saturating_sub(1)).collect();
    clipped.push('…');
    clipped
}

/// `text`, printable, in lines of at most `width` characters, all but the first of which begin with `indent` spaces. Lines
/// break between words, and inside a word only where it is longer than a line.
pub fn wrap(text: &str, width: usize, indent: usize) -> Vec<String> {
    let longest = width.saturating_sub(indent).max(1);
    let mut lines: Vec<String> = Vec::new();
    for word in printable(text).split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + letters.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => {
                for piece in letters.chunks(longest) {
                    let indent = if lines.is_empty() { 0 } else { indent };
                    lines.push(" ".repeat(indent) + &String::from_iter(piece));
                }
            }
        }
    }
    lines
}

/// `count` and the noun, in the plural where it must be.
pub fn counted(count: impl Display + PartialEq + From<u8>, noun: &str) -> String {
    let plural = if count == 1.into() { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// `text` in a style of the terminal.
pub fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_line_is_wider_than_asked(text in "[a-z ]{0,80}", width in 1_usize..30, indent in 0_usize..5) {
            let lines = wrap(&text, width, indent);
            prop_assert!(lines.iter().all(|line| line.chars().count() <= width.max(indent + 1)), "{:?}", lines);
            let letters = |text: &str| text.split_whitespace().collect::<String>();
            prop_assert_eq!(letters(&lines.concat()), letters(&text));
        }

        #[test]
        fn a_duration_fits_its_column(millis in 0..100 * 86_400_000_u64) {
            let text = duration(Duration::from_millis(millis));
            prop_assert!(text.len() <= 6, "{}", text);
        }
    }

    #[test]
    fn durations_keep_two_units_at_most() {
        for (millis, text) in [
            (0, "0s"),
            (40, "40ms"),
            (1_400, "1.4s"),
            (9_990, "9.9s"),
            (38_000, "38s"),
            (212_400, "3m32s"),
            (3_720_000, "1h02m"),
            (183_600_000, "2d03h"),
        ] {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn one_is_not_several() {
        assert_eq!(counted(0_u32, "lane"), "0 lanes");
        assert_eq!(counted(1_usize, "lane"), "1 lane");
        assert_eq!(counted(2_u64, "lane"), "2 lanes");
    }

    #[test]
    fn a_name_cannot_move_the_cursor() {
        assert_eq!(printable("acme"), "acme");
        assert_eq!(printable("\x1b[2Jacme\n"), "?[2Jacme?");
    }

    #[test]
    fn a_long_name_is_clipped_to_its_column() {
        assert_eq!(clip("reasoning", 9), "reasoning");
        assert_eq!(clip("reasoning", 6), "reaso…");
    }

    #[test]
    fn a_long_sentence_wraps_between_words() {
        assert_eq!(wrap("nothing waits", 13, 2), ["nothing waits"]);
        assert_eq!(
            wrap("nothing starts for 30s more", 14, 2),
            ["nothing starts", "  for 30s more"]
        );
        assert_eq!(
            wrap("of x12345678901234\x1b", 8, 2),
            ["of", "  x12345", "  678901", "  234?"]
        );
    }

    #[test]
    fn a_moment_has_no_fraction() {
        let at: Timestamp = "2026-01-02T03:04:05.678901234Z".parse().unwrap();
        assert_eq!(moment(at), "2026-01-02T03:04:05Z");
    }
}
