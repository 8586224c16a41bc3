//! "Did you mean …?"

/// Similarity (Jaro-Winkler, 0 to 1) from which on a word counts as a misspelling. 0.8 takes `max_inflght` for
/// `max_inflight` and not `timeout` for `queue_timeout`, which is looked up as a part instead.
const SIMILAR: f64 = 0.8;

/// The word that was probably meant: the most similar one, or the only one of which this is a part.
pub fn nearest<'a>(word: &str, words: &[&'a str]) -> Option<&'a str> {
    let word = word.to_ascii_lowercase().replace('-', "_");
    let similar = words
        .iter()
        .map(|candidate| (strsim::jaro_winkler(&word, candidate), *candidate))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate);
    similar.or_else(|| {
        let mut containing = words
            .iter()
            .filter(|candidate| word.len() >= 4 && candidate.contains(&*word));
        containing
            .next()
            .filter(|_| containing.next().is_none())
            .copied()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspellings_find_their_key_and_strangers_find_none() {
        let words = [
            "max_inflight",
            "max_queue",
            "queue_timeout",
            "on_full",
            "udp",
        ];
        assert_eq!(nearest("max_inflght", &words), Some("max_inflight"));
        assert_eq!(nearest("Max-Inflight", &words), Some("max_inflight"));
        assert_eq!(nearest("timeout", &words), Some("queue_timeout"));
        assert_eq!(nearest("inflight", &words), Some("max_inflight"));
        assert_eq!(nearest("colour", &words), None);
        assert_eq!(nearest("", &words), None);
    }
}
