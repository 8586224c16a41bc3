//! What the commands print: one way, whatever becomes of the reader.

use std::{
    fmt::Display,
    io::{self, Write},
};

use anyhow::Context;
use serde::Serialize;

/// Prints `text`, which ends its lines itself, on standard output.
///
/// # Errors
/// When it cannot be written, unless its reader has gone.
pub fn out(text: impl Display) -> anyhow::Result<()> {
    done(write(text))
}

/// Prints a document on standard output, in one line.
///
/// # Errors
/// As [`out`].
pub fn json(document: &impl Serialize) -> anyhow::Result<()> {
    out(format_args!("{}\n", serde_json::to_string(document)?))
}

/// Writes on standard output. Styles are stripped where `NO_COLOR` says so, or where nobody sees them.
///
/// # Errors
/// Those of writing, that the reader has gone among them: for those who would go on.
pub fn write(text: impl Display) -> io::Result<()> {
    let text = text.to_string();
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// How a command ends that has written on standard output.
///
/// # Errors
/// When it could not, unless its reader has gone.
pub fn done(written: io::Result<()>) -> anyhow::Result<()> {
    unless_gone(written).context("cannot write to standard output")
}

/// What writing has led to, where it is no error that the reader has gone: who reads no more, as `head -1`, has what it
/// wants.
///
/// # Errors
/// All others.
pub fn unless_gone(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Tells people something on standard error. If nobody can be told, nobody can be told of that either.
pub fn note(line: impl Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}
