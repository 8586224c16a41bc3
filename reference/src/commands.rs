//! Every command with its options.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory as _};
use shaper_user::cli::Cli;

use crate::head;

/// The command that clap adds.
const HELP: &str = "help";

pub fn page() -> String {
    let mut shaper = Cli::command();
    // Gives every subcommand the name by which it is called, and the options that all have.
    shaper.build();
    let mut text = head(
        "Command reference",
        "the descriptions in `shaper-user/src/cli/`",
    );
    text += "What `shaper help` and `shaper COMMAND --help` print.\n\n";
    text += "| command | what it does |\n| --- | --- |\n";
    for command in shown(&shaper) {
        let name = full_name(command);
        let about = command
            .get_about()
            .map(ToString::to_string)
            .unwrap_or_default();
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "| [`{name}`](#{}) | {about} |",
            name.replace(' ', "-")
        );
    }
    text.push('\n');
    if let Some(after) = shaper.get_after_help() {
        block(&mut text, &after.to_string());
    }
    for command in shown(&shaper) {
        describe(&mut text, command);
    }
    // One line break ends a file.
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn shown(shaper: &Command) -> impl Iterator<Item = &Command> {
    shaper
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != HELP)
}

fn full_name(command: &Command) -> String {
    command
        .get_bin_name()
        .unwrap_or_else(|| command.get_name())
        .to_owned()
}

fn describe(text: &mut String, command: &Command) {
    let _ = write!(text, "## `{}`\n\n", full_name(command));
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        for paragraph in about.to_string().split("\n\n") {
            let _ = write!(text, "{}\n\n", with_full_stop(paragraph));
        }
    }
    block(text, &command.clone().render_usage().to_string());
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && arg.get_id() != HELP)
        .partition(|arg| arg.is_positional());
    for arg in positional.into_iter().chain(options) {
        argument(text, arg);
    }
    text.push('\n');
    if let Some(examples) = command.get_after_help() {
        block(text, &examples.to_string());
    }
}

/// clap takes the full stop off the first sentence.
fn with_full_stop(paragraph: &str) -> String {
    if paragraph.ends_with('.') {
        paragraph.to_owned()
    } else {
        format!("{paragraph}.")
    }
}

fn block(text: &mut String, content: &str) {
    let _ = write!(text, "```text\n{}\n```\n\n", content.trim_matches('\n'));
}

fn argument(text: &mut String, arg: &Arg) {
    let help = arg.get_long_help().or(arg.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let _ = write!(text, "- `{}`: {}", spelling(arg), help.replace("\n\n", " "));
    let default = arg.get_default_values().first();
    if let Some(default) = default.filter(|_| arg.get_action().takes_values()) {
        let _ = write!(text, " [default: {}]", default.display());
    }
    let words: Vec<_> = arg
        .get_possible_values()
        .iter()
        .filter(|_| arg.get_action().takes_values())
        .map(|word| word.get_name().to_owned())
        .collect();
    if !words.is_empty() {
        let _ = write!(text, " [possible values: {}]", words.join(", "));
    }
    text.push('\n');
}

/// As `--help` spells it: `--for <DURATION>`, `<LANE>`.
fn spelling(arg: &Arg) -> String {
    let takes_value = arg.get_action().takes_values();
    let values = arg.get_value_names().unwrap_or_default();
    let mut words: Vec<String> = arg
        .get_long()
        .map(|long| format!("--{long}"))
        .into_iter()
        .collect();
    if takes_value {
        words.extend(values.iter().map(|name| format!("<{name}>")));
    }
    words.join(" ")
}
