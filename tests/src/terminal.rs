//! A program in a terminal of its own: keys go in, the screen is what a terminal would show.

use std::ffi::c_int;
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::libc;
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;

use crate::clock::poll_until;

const PATIENCE: Duration = Duration::from_secs(20);

/// A terminal and the program in it; killed when dropped.
pub struct Terminal {
    child: Child,
    /// The side of whoever sits before the terminal.
    keyboard: File,
    /// The program's side, kept open so that its settings can be looked at after the program's end.
    line: OwnedFd,
    screen: Arc<Mutex<vt100::Parser>>,
}

/// Rows and columns.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Size {
    rows: NonZero<u16>,
    columns: NonZero<u16>,
}

impl Size {
    /// What every terminal has had since the VT100.
    pub const CLASSIC: Self = Self::new(24, 80);

    /// # Panics
    /// If either is 0.
    pub const fn new(rows: u16, columns: u16) -> Self {
        Self {
            rows: NonZero::new(rows).expect("a terminal has rows"),
            columns: NonZero::new(columns).expect("a terminal has columns"),
        }
    }

    fn winsize(self) -> Winsize {
        Winsize {
            ws_row: self.rows.get(),
            ws_col: self.columns.get(),
            ws_xpixel: 0,
            ws_ypixel: 0,
        }
    }
}

nix::ioctl_write_ptr_bad!(set_winsize, libc::TIOCSWINSZ, Winsize);

impl Terminal {
    /// Starts a program as the leader of a terminal's session, as a login shell would be. `command` says whether there is
    /// a NO_COLOR.
    pub fn start(mut command: Command, size: Size) -> Result<Self> {
        let pty = openpty(Some(&size.winsize()), None).context("cannot open a terminal")?;
        let stdio = || pty.slave.try_clone().map(Stdio::from);
        command
            .env("TERM", "xterm-256color")
            .stdin(stdio()?)
            .stdout(stdio()?)
            .stderr(stdio()?);
        // SAFETY: setsid(2) and ioctl(2) are all that runs between fork and exec, and both are async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                let take: c_int = libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0);
                nix::errno::Errno::result(take)?;
                Ok(())
            });
        }
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let keyboard = File::from(pty.master);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size.rows, size.columns, 0)));
        let mut output = keyboard.try_clone()?;
        let sink = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                let mut parser = sink.lock().expect("the screen's lock");
                parser.process(&bytes[..read]);
            }
        });
        Ok(Self {
            child,
            keyboard,
            line: pty.slave,
            screen,
        })
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        self.keyboard
            .write_all(keys.as_bytes())
            .context("cannot press a key")
    }

    /// What the terminal shows, a line for each row.
    pub fn screen(&self) -> String {
        let parser = self.screen.lock().expect("the screen's lock");
        parser.screen().contents()
    }

    /// Whether anything on the screen has a colour.
    pub fn is_coloured(&self) -> bool {
        let parser = self.screen.lock().expect("the screen's lock");
        let screen = parser.screen();
        let (rows, columns) = screen.size();
        let cells =
            (0..rows.get()).flat_map(|row| (0..columns.get()).map(move |column| (row, column)));
        cells
            .filter_map(|(row, column)| screen.cell(row, column))
            .any(|cell| cell.fgcolor() != vt100::Color::Default)
    }

    /// Whether the program has the whole screen, apart from what was there before.
    pub fn is_full_screen(&self) -> bool {
        let parser = self.screen.lock().expect("the screen's lock");
        parser.screen().alternate_screen()
    }

    /// Whether the terminal is as a shell wants it: keys are echoed, lines are edited, the cursor is shown, and the
    /// screen is the one from before.
    pub fn is_restored(&self) -> Result<bool> {
        let settings = tcgetattr(&self.line).context("cannot look at the terminal's settings")?;
        let cooked = LocalFlags::ECHO | LocalFlags::ICANON;
        let parser = self.screen.lock().expect("the screen's lock");
        let screen = parser.screen();
        Ok(settings.local_flags.contains(cooked)
            && !screen.alternate_screen()
            && !screen.hide_cursor())
    }

    /// Waits until the screen is as wanted, and returns it.
    ///
    /// # Errors
    /// If it is not in time; the message shows it.
    pub fn wait_until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        poll_until(PATIENCE, || {
            Some(self.screen()).filter(|screen| wanted(screen))
        })
        .ok_or_else(|| anyhow!("{what} did not come; the screen:\n{}", self.screen()))
    }

    /// Waits until the screen has these words.
    ///
    /// # Errors
    /// As [`Terminal::wait_until`].
    pub fn wait_for(&self, words: &str) -> Result<String> {
        self.wait_until(words, |screen| screen.contains(words))
    }

    /// Makes the terminal larger or smaller, as a window's border does.
    pub fn resize(&mut self, size: Size) -> Result<()> {
        self.screen
            .lock()
            .expect("the screen's lock")
            .screen_mut()
            .set_size(size.rows, size.columns);
        // SAFETY: the descriptor is open and the structure is the one that the request takes.
        unsafe { set_winsize(self.keyboard.as_raw_fd(), &size.winsize()) }
            .context("cannot resize the terminal")?;
        Ok(())
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, signal).with_context(|| format!("cannot send {signal}"))
    }

    /// Waits for the program's own end.
    ///
    /// # Errors
    /// If it does not come in time; the message shows the screen.
    pub fn finish(&mut self) -> Result<ExitStatus> {
        poll_until(PATIENCE, || self.child.try_wait().transpose())
            .ok_or_else(|| anyhow!("still running; the screen:\n{}", self.screen()))?
            .context("cannot wait for the program")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Both fail only if the program has been waited for, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
