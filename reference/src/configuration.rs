//! Every key of the configuration.

use std::fmt::Write as _;

use shaper_user::config::{Documented, LANE, Presence, SETTINGS, Schema};

use crate::head;

const INTRODUCTION: &str = "\
Every key there is, and nothing else: a key that is not on this page is an error, and so is a value outside its range. How the keys work
together is in the [guide](../configuration.md); `shaper check` says what a configuration means.

Files are TOML. A dotted key such as `class.bulk.max_inflight` may be written so, or as `max_inflight` under `[class.bulk]`. `<class>` stands for
`interactive`, `default` or `bulk`. Durations are strings of numbers with units, such as `\"250ms\"`, `\"90s\"` or `\"1h 30m\"`.

";

pub fn page() -> String {
    let mut text = head(
        "Configuration reference",
        "`shaper-user/src/config/keys.rs`",
    );
    text += INTRODUCTION;
    text += "## A lane: `lanes.d/NAME.toml`\n\nThe name of the file is the name of the lane. `shaper set LANE KEY=VALUE` changes any of these \
             keys but `endpoints`\nwhile the controller runs.\n\n";
    keys(&mut text, &LANE);
    text +=
        "## The host: `shaper.toml`\n\nThe file may be absent; then every key has its default.\n\n";
    keys(&mut text, &SETTINGS);
    // One line break ends a file.
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn keys(text: &mut String, schema: &Schema) {
    for key in schema.keys {
        describe(text, *key);
    }
}

fn describe(text: &mut String, key: &dyn Documented) {
    let form = key.form();
    // Writing to a String does not fail.
    let _ = write!(
        text,
        "### `{}`\n\n{}\n\n- Type: {}\n",
        key.path(),
        key.meaning(),
        form.kind
    );
    if let Some(unit) = form.unit {
        let _ = writeln!(text, "- Unit: {unit}");
    }
    let default = match key.presence() {
        Presence::Required => "none, the key is required".to_owned(),
        Presence::RequiredToEnforce => {
            "none, the key is required when `max_inflight` is more than 0".to_owned()
        }
        Presence::Default(toml) => format!("`{toml}`"),
        Presence::Optional(otherwise) => otherwise.to_owned(),
    };
    let _ = write!(text, "- Range: {}\n- Default: {default}\n\n", form.range);
}
