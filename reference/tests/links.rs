//! The links of README and book lead somewhere, and the book has all its pages.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this package is a directory of the workspace")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every page below a directory.
fn pages_below(directory: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages.extend(pages_below(&path));
        } else if path.extension().is_some_and(|kind| kind == "md") {
            pages.push(path);
        }
    }
    pages.sort();
    pages
}

/// The text without code, in which a bracket is no link and a `#` no heading.
fn prose(text: &str) -> String {
    let mut in_block = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            prose += line;
            prose.push('\n');
        }
    }
    prose
}

/// Where the links of a page lead: the part in parentheses of `[text](target)`.
fn targets(text: &str) -> Vec<String> {
    let prose = prose(text);
    prose
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
        .collect()
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text);
    let headings = headings.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            line.trim_start_matches('#')
                .trim()
                .chars()
                .filter_map(|c| match c {
                    ' ' => Some('-'),
                    c if c.is_alphanumeric() || c == '-' || c == '_' => {
                        Some(c.to_ascii_lowercase())
                    }
                    _ => None,
                })
                .collect()
        })
        .collect()
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let docs = workspace().join("docs");
    let mut pages = pages_below(&docs);
    pages.push(workspace().join("README.md"));
    let mut broken = Vec::new();
    let mut followed = 0;
    for page in &pages {
        let text = read(page);
        for target in targets(&text) {
            if target.contains("://") {
                continue;
            }
            followed += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() {
                page.clone()
            } else {
                page.parent().unwrap().join(file)
            };
            let leaves_the_book = page.starts_with(&docs)
                && path
                    .canonicalize()
                    .is_ok_and(|path| !path.starts_with(&docs));
            let has_anchor = || anchor.is_empty() || anchors(&read(&path)).contains(anchor);
            if !path.exists() || leaves_the_book || !has_anchor() {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(
        followed > 30,
        "only {followed} links were found: is the search wrong?"
    );
}

/// mdBook leaves out what its summary does not name.
#[test]
fn every_page_is_in_the_book() {
    let docs = workspace().join("docs");
    let summary = docs.join("SUMMARY.md");
    let listed: BTreeSet<PathBuf> = targets(&read(&summary))
        .iter()
        .map(|target| docs.join(target))
        .collect();
    let pages: BTreeSet<PathBuf> = pages_below(&docs)
        .into_iter()
        .filter(|page| *page != summary)
        .collect();
    assert_eq!(listed, pages);
}
