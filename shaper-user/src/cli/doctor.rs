//! `shaper doctor`: what this kernel and host allow, and how to mend what is missing.

use std::{fmt::Write as _, fs, io, net::SocketAddr, path::PathBuf, process::ExitCode};

use anstyle::{AnsiColor, Style};
use anyhow::Context;

use super::print;
use crate::{
    doctor::{self, Finding, Group, Report, Verdict},
    format,
};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const NOTABLE: Style = AnsiColor::Yellow.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// Columns of a verdict and of a probe's name; the longest is `shaper_connect4`.
const VERDICT_WIDTH: usize = 8;
const NAME_WIDTH: usize = 15;

/// Show what this kernel and host allow, and how to mend what is missing
///
/// Tries everything on connections of its own, in a cgroup and a network namespace made for that. A running controller
/// does not notice. Exits with 1 if something is missing that shaper cannot work without.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sudo shaper doctor
  sudo shaper doctor --json | jq .verdict")]
pub struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    pub json: bool,

    /// Write the verifier's whole log there, if it refuses a program
    #[arg(long, value_name = "FILE")]
    pub verifier_log: Option<PathBuf>,
}

/// One connect, on behalf of the examination
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ClientArgs {
    to: SocketAddr,
}

/// Examines and prints.
///
/// # Errors
/// When standard output, unless its reader has gone, or the verifier's log cannot be written.
pub fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let report = doctor::examine();
    if let Some(path) = &args.verifier_log
        && !report.verifier_logs.is_empty()
    {
        fs::write(path, report.verifier_logs.join("\n"))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        print::out(format_args!("{}\n", serde_json::to_string_pretty(&report)?))?;
    } else {
        print::out(text(&report))?;
    }
    Ok(exit_code(report.verdict()))
}

/// The part of the examination that runs in another process.
///
/// # Errors
/// As [`doctor::connect_and_tell`].
pub fn run_client(args: &ClientArgs) -> io::Result<()> {
    doctor::connect_and_tell(args.to)
}

fn exit_code(verdict: Verdict) -> ExitCode {
    match verdict {
        Verdict::Ok | Verdict::Untried | Verdict::Degraded => ExitCode::SUCCESS,
        Verdict::Missing => ExitCode::FAILURE,
    }
}

/// The report for people, with styles: a paragraph for each group, then the verdict.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    for group in Group::ALL {
        let mut findings = report.of(group).peekable();
        if findings.peek().is_some() {
            line(&mut text, BOLD, group.title());
            for finding in findings {
                explain(&mut text, finding);
            }
            text.push('\n');
        }
    }
    let (style, conclusion) = match report.verdict() {
        Verdict::Ok | Verdict::Untried => (GOOD, "ok: shaper works here"),
        Verdict::Degraded => (
            NOTABLE,
            "degraded: shaper works here, except for what is said above",
        ),
        Verdict::Missing => (
            BAD,
            "missing: shaper cannot work here before that is mended",
        ),
    };
    line(&mut text, style, conclusion);
    text
}

fn explain(text: &mut String, finding: &Finding) {
    let style = match finding.verdict {
        Verdict::Ok => GOOD,
        Verdict::Untried => DIM,
        Verdict::Degraded => NOTABLE,
        Verdict::Missing => BAD,
    };
    let indent = 2 + VERDICT_WIDTH + 1 + NAME_WIDTH + 1;
    // The verifier's last words have several lines.
    let mut detail = finding.detail.lines().map(format::printable);
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "  {style}{:VERDICT_WIDTH$}{style:#} {:NAME_WIDTH$} {}",
        finding.verdict.name(),
        finding.probe.name(),
        detail.next().unwrap_or_default(),
    );
    for more in detail {
        let _ = writeln!(text, "{:indent$}{more}", "");
    }
    if let Some(remedy) = &finding.remedy {
        let _ = writeln!(text, "{:indent$}→ {remedy}", "");
    }
}

fn line(text: &mut String, style: Style, content: &str) {
    let _ = writeln!(text, "{style}{content}{style:#}");
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use shaper_common::Family;

    use super::*;
    use crate::doctor::Probe;

    fn plain(findings: &[Finding]) -> String {
        let report = Report {
            findings: findings.to_vec(),
            ..Report::default()
        };
        strip_str(&text(&report)).to_string()
    }

    #[test]
    fn each_finding_is_a_line_and_each_remedy_another() {
        let findings = [
            Probe::Kernel.ok("Linux 6.18.44"),
            Probe::BpfFs.degraded("not mounted", "mount it"),
            Probe::Program("shaper_connect4").missing("unknown func\nprocessed 7 insns", "newer"),
            Probe::Destroy.untried("nothing is attached"),
        ];
        assert_eq!(
            plain(&findings),
            "\
this host
  ok       kernel          Linux 6.18.44
  degraded bpffs           not mounted
                           → mount it

the kernel programs
  missing  shaper_connect4 unknown func
                           processed 7 insns
                           → newer

tried on connections of its own
  untried  destroy         nothing is attached; would show whether a queue timeout can end a waiter

missing: shaper cannot work here before that is mended
"
        );
    }

    #[test]
    fn only_what_is_missing_fails() {
        let ok = Probe::Kernel.ok("");
        let degraded = Probe::Jit.degraded("", "");
        let untried = Probe::Hold(Family::V6).untried("");
        assert!(plain(std::slice::from_ref(&ok)).ends_with("ok: shaper works here\n"));
        assert!(plain(&[ok, degraded.clone()]).contains("\ndegraded: shaper works here"));
        for verdict in [Verdict::Ok, degraded.verdict, untried.verdict] {
            assert_eq!(exit_code(verdict), ExitCode::SUCCESS);
        }
        assert_eq!(exit_code(Verdict::Missing), ExitCode::FAILURE);
    }

    #[test]
    fn a_detail_cannot_move_the_cursor() {
        let finding = Probe::Maps.missing("\x1b[2Jbad", "none");
        assert!(plain(&[finding]).contains("?[2Jbad"));
    }
}
