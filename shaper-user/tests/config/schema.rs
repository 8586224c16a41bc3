//! The table of keys is what is parsed: each of its keys is accepted, nothing else is.

use shaper_common::Class;
use shaper_user::config::{ANY_CLASS, Documented, LANE, Presence, SETTINGS, Schema};

use crate::{enforcing, parse};

/// A right value of a key that has no default.
fn example(path: &str) -> &'static str {
    match path {
        "endpoints" => r#"["10.1.2.3:8000"]"#,
        "max_inflight" => "6",
        "max_queue" => "64",
        "queue_timeout" => "\"300s\"",
        "class.<class>.max_inflight" => "4",
        "class.<class>.queue_timeout" => "\"600s\"",
        "account.max_inflight" => "3",
        "account.overrides" => "{ acme = 20 }",
        "pace.per_second" => "5",
        "pace.per_minute" => "15",
        "token_file" => r#""/etc/shaper/token""#,
        "classes.<class>.cgroups" => r#"["elsewhere"]"#,
        _ => panic!("no example of {path}"),
    }
}

fn value_of(key: &dyn Documented) -> &'static str {
    match key.presence() {
        Presence::Default(toml) => toml,
        _ => example(key.path()),
    }
}

#[test]
fn every_key_of_the_lane_table_is_accepted() {
    for key in LANE.keys {
        for class in Class::ALL {
            let path = key.path().replace(ANY_CLASS, class.name());
            let line = format!("{path} = {}", value_of(*key));
            let pace = if path.starts_with("pace.") && !path.contains("per_second") {
                "pace.per_second = 1"
            } else {
                ""
            };
            let base = enforcing(pace);
            let others: String = base
                .lines()
                .filter(|other| !other.starts_with(&format!("{path} ")))
                .map(|other| format!("{other}\n"))
                .collect();
            let text = format!("{others}{line}");
            parse(&[("lanes.d/a.toml", &text)]).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
        }
    }
}

#[test]
fn every_key_of_the_settings_table_is_accepted() {
    for key in SETTINGS.keys {
        for class in Class::ALL {
            let text = format!(
                "{} = {}",
                key.path().replace(ANY_CLASS, class.name()),
                value_of(*key)
            );
            parse(&[("shaper.toml", &text)]).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
        }
    }
}

/// Each segment of each path, changed, is an error.
#[test]
fn no_neighbour_of_a_key_is_accepted() {
    fn neighbours(schema: &Schema) -> Vec<String> {
        let mut neighbours = Vec::new();
        for key in schema.keys {
            let path = key.path().replace(ANY_CLASS, "bulk");
            let segments: Vec<_> = path.split('.').collect();
            for changed in 0..segments.len() {
                let mut segments = segments.clone();
                let name = format!("{}x", segments[changed]);
                segments[changed] = &name;
                neighbours.push(format!("{} = {}", segments.join("."), value_of(*key)));
            }
        }
        neighbours
    }
    for line in neighbours(&LANE) {
        let errors = parse(&[("lanes.d/a.toml", &enforcing(&line))])
            .expect_err(&line)
            .to_string();
        assert!(errors.contains("is not a"), "{line}\n{errors}");
    }
    for line in neighbours(&SETTINGS) {
        let errors = parse(&[("shaper.toml", &line)])
            .expect_err(&line)
            .to_string();
        assert!(errors.contains("is not a"), "{line}\n{errors}");
    }
}

#[test]
fn every_key_is_documented() {
    for key in LANE.keys.iter().chain(SETTINGS.keys) {
        assert!(
            key.meaning().ends_with('.') && !key.meaning().contains('\n'),
            "{key:?}"
        );
        assert!(
            !key.expected().is_empty() && !key.presence().to_string().is_empty(),
            "{key:?}"
        );
    }
}
