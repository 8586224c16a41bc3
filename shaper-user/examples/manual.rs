//! Writes the manual pages, with a date, and the shells' completions of `shaper` into a directory: `manual DIR DATE`.
//!
//! They are made from the command line's own description whenever a package is built, so they cannot fall behind it.

use std::{env, fs, io, path::Path, process::ExitCode};

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;
use shaper_user::cli::Cli;

/// The heading of each page.
const MANUAL: &str = "Shaper";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [dir, date] = &arguments[..] else {
        eprintln!("usage: manual DIR DATE");
        return ExitCode::FAILURE;
    };
    match write(Path::new(dir), date) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {dir}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(dir: &Path, date: &str) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut cli = Cli::command().disable_help_subcommand(true);
    cli.build();
    write_page(dir, date, &cli, cli.get_name())?;
    for command in cli
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        // Git's way: the page of `shaper run` is shaper-run(1).
        write_page(
            dir,
            date,
            command,
            &format!("{}-{}", cli.get_name(), command.get_name()),
        )?;
    }
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut Cli::command(), cli.get_name(), dir)?;
    }
    Ok(())
}

fn write_page(dir: &Path, date: &str, command: &Command, name: &str) -> io::Result<()> {
    let command = command.clone().display_name(name.to_owned());
    let source = format!("shaper {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command).title(name).date(date);
    let mut page = Vec::new();
    man.source(source).manual(MANUAL).render(&mut page)?;
    // Before a list of values: a line break there is none to break, which `mandoc` warns of.
    let page = String::from_utf8_lossy(&page).replace(".br\n\n.br\n", ".sp\n");
    fs::write(dir.join(format!("{name}.1")), page)
}
