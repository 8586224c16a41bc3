//! The page in `docs/`: its tables come from the figures, the words around them are its author's.

use std::{fs, path::Path};

use anyhow::{Context, Result};

/// Replaces what stands between `<!-- bench:SECTION -->` and `<!-- /bench:SECTION -->` in the page, for each section.
///
/// # Errors
/// The page cannot be read or written, or lacks the marks of a section; it is unchanged then.
pub fn renew<'a>(page: &Path, sections: impl IntoIterator<Item = (&'a str, String)>) -> Result<()> {
    let unreadable = || page.display().to_string();
    let mut text = fs::read_to_string(page).with_context(unreadable)?;
    for (section, content) in sections {
        text = replaced(&text, section, &content)
            .with_context(|| format!("{} has no section {section:?}", page.display()))?;
    }
    fs::write(page, text).with_context(unreadable)
}

fn replaced(text: &str, section: &str, content: &str) -> Option<String> {
    let (before, rest) = text.split_once(&format!("<!-- bench:{section} -->"))?;
    let (_, after) = rest.split_once(&format!("<!-- /bench:{section} -->"))?;
    let content = content.trim_end();
    Some(format!(
        "{before}<!-- bench:{section} -->\n{content}\n<!-- /bench:{section} -->{after}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let text = "Before\n<!-- bench:a -->\nold\n<!-- /bench:a -->\nafter <!-- bench:b --><!-- /bench:b -->";
        let once = replaced(text, "a", "new\n").unwrap();
        let expected = "Before\n<!-- bench:a -->\nnew\n<!-- /bench:a -->\nafter <!-- bench:b --><!-- /bench:b -->";
        assert_eq!(once, expected);
        assert_eq!(replaced(&once, "a", "new\n").unwrap(), expected);
        assert_eq!(replaced(text, "c", "new"), None);
    }
}
