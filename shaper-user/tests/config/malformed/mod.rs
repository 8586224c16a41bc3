//! E9: bad values are errors that say so; a typo is never silently a default.

mod endpoints;
mod lane;
mod renderings;
mod settings;

use crate::parse;

/// A lane file, and parts of what is said of it: the place first.
pub(crate) type Case<'a> = (&'a str, &'a [&'a str]);

pub(crate) fn assert_rejected(path: &str, text: &str, parts: &[&str]) {
    let errors = parse(&[(path, text)]).expect_err(text).to_string();
    assert!(
        errors.contains(&format!("error: {path}:")),
        "{text}\n{errors}"
    );
    for part in parts {
        assert!(errors.contains(part), "{text}\n{errors}\nlacks {part}");
    }
}
