//! The checked-in pages are what the program knows.

use std::{collections::BTreeSet, fs, path::Path};

use shaper_user::config::{Config, Files, Origin, TextFile};

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this package is a directory of the workspace")
}

/// Somebody who changed a key, a metric or an option has renewed the pages.
#[test]
fn the_pages_are_current() {
    let stale = shaper_reference::stale(workspace()).unwrap();
    let names: Vec<_> = stale.iter().map(|(_, page)| page.name).collect();
    assert!(names.is_empty(), "{names:?}: run `cargo xtask docs`");
}

/// A key that no file has, and that resembles none.
const STRANGER: &str = "qqqqqqqq";

const SETTINGS: &str = "shaper.toml";
const LANE: &str = "lanes.d/a.toml";

/// What the parser says of a file with this line and no other.
fn said_of(file: &str, line: &str) -> String {
    let text = TextFile {
        path: file.into(),
        text: line.to_owned(),
    };
    let (settings, lanes) = if file == SETTINGS {
        (Some(text), Vec::new())
    } else {
        (None, vec![text])
    };
    let parsed = Config::parse(&Files {
        origin: Origin::Directory("test".into()),
        settings,
        lanes,
    });
    parsed.map_or_else(|errors| errors.to_string(), |_| String::new())
}

/// The names that the parser takes directly below `table`, as it lists them to somebody who has written another;
/// `None`: it is no table.
fn names_below(file: &str, table: &str) -> Option<Vec<String>> {
    let said = said_of(file, &format!("{table}{STRANGER} = 0"));
    let list = said.split_once("remove it, or use one of ")?.1;
    let list = list.lines().next().unwrap_or_default();
    Some(
        list.split(", ")
            .map(|name| name.trim_matches('`').to_owned())
            .collect(),
    )
}

/// Every key that the parser takes in this file, found by asking it.
fn keys_of_the_parser(file: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let mut tables = vec![String::new()];
    while let Some(table) = tables.pop() {
        for name in names_below(file, &table).unwrap_or_default() {
            let path = format!("{table}{name}");
            // A table whose names are free takes the stranger too, and is a key as a whole.
            match names_below(file, &format!("{path}.")) {
                Some(_) => tables.push(format!("{path}.")),
                None => {
                    keys.insert(path);
                }
            }
        }
    }
    keys
}

/// The keys that have a section on the page below the heading that names `file`, once for each class.
fn keys_of_the_page(file: &str) -> BTreeSet<String> {
    let path = workspace().join("docs/reference/configuration.md");
    let page = fs::read_to_string(&path).unwrap();
    let part = page
        .split("\n## ")
        .find(|part| part.lines().next().unwrap_or_default().contains(file))
        .unwrap_or_else(|| panic!("{} has no part about {file}", path.display()));
    part.lines()
        .filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'))
        .flat_map(|key| {
            ["interactive", "default", "bulk"].map(|class| key.replace("<class>", class))
        })
        .collect()
}

/// Every key in the configuration reference exists, every key that exists is in it.
#[test]
fn the_reference_has_every_key_of_the_parser_and_no_other() {
    for (file, heading, known) in [
        (SETTINGS, "shaper.toml", "classes.bulk.cgroups"),
        (LANE, "lanes.d/NAME.toml", "adaptive.cooldown"),
    ] {
        let of_parser = keys_of_the_parser(file);
        assert!(of_parser.contains(known), "{of_parser:?}");
        assert_eq!(keys_of_the_page(heading), of_parser, "{file}");
    }
}

/// A key that is on the page is not one that the parser calls unknown, whatever it thinks of the value.
#[test]
fn no_key_of_the_reference_is_unknown_to_the_parser() {
    for (file, heading) in [(SETTINGS, "shaper.toml"), (LANE, "lanes.d/NAME.toml")] {
        for key in keys_of_the_page(heading) {
            let said = said_of(file, &format!("{key} = 0"));
            for complaint in ["is not a known key", "is not a class"] {
                assert!(!said.contains(complaint), "{key}: {said}");
            }
        }
    }
}
