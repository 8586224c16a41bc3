//! Reads `shaper.toml`.

use shaper_common::Class;

use super::{
    ClassConfig, Settings,
    diagnostic::{self, Diagnostic, Position},
    files::TextFile,
    keys::{self, settings as key},
    kind::Item,
    reader::{Reader, default_of},
};

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: default_of(&key::LISTEN),
            token_file: None,
            scope: default_of(&key::SCOPE),
            follow_dns: default_of(&key::FOLLOW_DNS),
            on_controller_loss: default_of(&key::ON_CONTROLLER_LOSS),
            fail_after: default_of(&key::FAIL_AFTER),
            history: default_of(&key::HISTORY),
            classes: Class::ALL.map(|class| ClassConfig {
                cgroups: vec![default_cgroup(class)],
                by_default: true,
            }),
        }
    }
}

/// Where a class lives unless told otherwise, by its file or by systemd.
fn default_cgroup(class: Class) -> String {
    format!("shaper/{class}")
}

/// Whether a class's cgroup is a pattern, which finds cgroups, rather than named in full.
pub fn is_pattern(cgroup: &str) -> bool {
    cgroup.contains(['*', '?', '['])
}

/// Adds what is wrong to `diagnostics`; the result counts only if that has no error.
pub(super) fn parse(file: &TextFile, diagnostics: &mut Vec<Diagnostic>) -> Settings {
    let mut reader = match Reader::new(&file.path, &file.text, &keys::SETTINGS) {
        Ok(reader) => reader,
        Err(syntax) => {
            diagnostics.extend(syntax);
            return Settings::default();
        }
    };
    let settings = Settings {
        listen: reader.value(&key::LISTEN),
        token_file: reader.find(&key::TOKEN_FILE).map(|found| found.value),
        scope: reader.value(&key::SCOPE),
        follow_dns: reader.value(&key::FOLLOW_DNS),
        on_controller_loss: reader.value(&key::ON_CONTROLLER_LOSS),
        fail_after: reader.value(&key::FAIL_AFTER),
        history: reader.value(&key::HISTORY),
        classes: classes(&mut reader),
    };
    let mut found = reader.into_diagnostics();
    diagnostic::sort(&mut found);
    diagnostics.extend(found);
    settings
}

fn classes(reader: &mut Reader<'_>) -> [ClassConfig; Class::ALL.len()] {
    let mut seen: Vec<(String, Class, Option<Position>)> = Vec::new();
    Class::ALL.map(|class| {
        let configured = reader
            .find_for(&key::CLASS_CGROUPS, class)
            .map(|found| found.value);
        let by_default = configured.is_none();
        let cgroups = configured.map_or_else(
            || vec![(default_cgroup(class), None)],
            |items| {
                let place = |item: Item<String>| (item.value, Some(reader.position(&item.span)));
                items.into_iter().map(place).collect()
            },
        );
        for (cgroup, at) in &cgroups {
            match seen.iter().find(|(other, ..)| other == cgroup) {
                Some((_, other, first)) => {
                    // Reported at the later of the two, or at the only one that the file has.
                    let place = (*at).max(*first).unwrap_or(Position::START);
                    reader.error(
                        place,
                        &key::CLASS_CGROUPS.path_for(class),
                        format!("`{}` is in class {other} already", cgroup),
                        "list each cgroup once; a class without a list has \"shaper/<class>\""
                            .to_owned(),
                    );
                }
                None => seen.push((cgroup.clone(), class, *at)),
            }
        }
        let mut cgroups: Vec<_> = cgroups.into_iter().map(|(cgroup, _)| cgroup).collect();
        cgroups.sort();
        ClassConfig {
            cgroups,
            by_default,
        }
    })
}
