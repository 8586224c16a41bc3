//! How values are shown to people.

use std::{borrow::Cow, time::Duration};

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
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
    fn a_name_cannot_move_the_cursor() {
        assert_eq!(printable("acme"), "acme");
        assert_eq!(printable("\x1b[2Jacme\n"), "?[2Jacme?");
    }

    #[test]
    fn a_long_name_is_clipped_to_its_column() {
        assert_eq!(clip("reasoning", 9), "reasoning");
        assert_eq!(clip("reasoning", 6), "reaso…");
    }
}
