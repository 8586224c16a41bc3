//! What README and book show to be copied is right: configuration that the parser takes, commands that exist.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Parser as _;
use shaper_user::{
    cli::Cli,
    config::{Config, Files, Origin, TextFile},
};

/// README and every page.
fn texts() -> Vec<(PathBuf, String)> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this package is a directory of the workspace");
    let docs = fs::read_dir(workspace.join("docs")).unwrap();
    let mut paths: Vec<PathBuf> = docs
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "md"))
        .collect();
    paths.push(workspace.join("README.md"));
    let text = |path: PathBuf| (path.clone(), fs::read_to_string(path).unwrap());
    paths.into_iter().map(text).collect()
}

/// The fenced blocks of a page whose language is one of these; an empty one is that of a block without.
fn blocks(text: &str, languages: &[&str]) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in text.lines() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, &mut open) {
            (Some(info), None) => {
                let language = info.split(' ').next().unwrap_or_default();
                open = Some((languages.contains(&language), String::new()));
            }
            (Some(_), Some(_)) => {
                blocks.extend(
                    open.take()
                        .filter(|(wanted, _)| *wanted)
                        .map(|(_, block)| block),
                );
            }
            (None, Some((_, block))) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// What is wrong with a part of a lane's file, or of `shaper.toml`: that more is needed is not.
fn faults(text: &str, is_lane: bool) -> Vec<String> {
    let file = TextFile {
        path: if is_lane {
            "lanes.d/example.toml"
        } else {
            "shaper.toml"
        }
        .into(),
        text: text.to_owned(),
    };
    let (settings, lanes) = if is_lane {
        (None, vec![file])
    } else {
        (Some(file), Vec::new())
    };
    let parsed = Config::parse(&Files {
        origin: Origin::Directory("test".into()),
        settings,
        lanes,
    });
    let Err(errors) = parsed else {
        return Vec::new();
    };
    let errors = errors.diagnostics().iter().filter(|error| error.is_error());
    errors
        .map(ToString::to_string)
        .filter(|error| !error.contains("is missing"))
        .collect()
}

#[test]
fn every_example_of_a_configuration_is_one() {
    let mut found = 0;
    for (path, text) in texts() {
        for block in blocks(&text, &["toml"]) {
            found += 1;
            let (as_lane, as_settings) = (faults(&block, true), faults(&block, false));
            assert!(
                as_lane.is_empty() || as_settings.is_empty(),
                "{}:\n{block}as a lane: {as_lane:#?}\nas shaper.toml: {as_settings:#?}",
                path.display()
            );
        }
    }
    assert!(
        found > 5,
        "only {found} examples were found: is the search wrong?"
    );
}

/// The words of a command line up to a comment, a pipe or the like. No example quotes a word with a space.
fn words(line: &str) -> Vec<&str> {
    let is_end = |word: &&str| !["#", "|", "&", ">", "&&", "…"].contains(word);
    line.split_whitespace().take_while(is_end).collect()
}

#[test]
fn every_example_of_a_command_is_one() {
    let mut found = 0;
    for (path, text) in texts() {
        for block in blocks(&text, &["", "sh", "text"]) {
            for line in block.lines() {
                let line = line.strip_prefix("sudo ").unwrap_or(line);
                // A table that begins with the version is an answer of shaper's.
                if !line.starts_with("shaper ") || line.contains(" · ") {
                    continue;
                }
                found += 1;
                let line = line.replace("$$", "4711");
                if let Err(error) = Cli::try_parse_from(words(&line)) {
                    panic!("{}: {line}\n{error}", path.display());
                }
            }
        }
    }
    assert!(
        found > 10,
        "only {found} examples were found: is the search wrong?"
    );
}
