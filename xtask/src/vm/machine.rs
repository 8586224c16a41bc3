//! A virtual machine that ends: by itself, when its time is over, or with the value that stands for it.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::kernel::Kernel;
use crate::command::{self, find_program, show};

/// More than the scenarios take: what they write is kept in memory.
const MEMORY: &str = "2048M";

const QEMU: &str = "qemu-system-x86_64";

/// Debian 12 ships it with QEMU, later releases by itself.
const VIRTIOFSD: [&str; 2] = ["/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd"];

/// What runs the machine's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor itself.
    Kvm,
    /// Software. One processor whose clock counts its instructions: however busy the host is, the scenarios see a
    /// machine of steady speed.
    Emulation,
}

impl Accelerator {
    const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Kvm => &["-accel", "kvm", "-smp", "2"],
            Self::Emulation => &[
                "-accel",
                "tcg,thread=single",
                "-icount",
                "shift=0,sleep=on",
                "-smp",
                "1",
            ],
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Emulation => "software emulation",
        }
    }
}

/// A running machine. Killed when dropped.
#[derive(Debug)]
pub struct Machine {
    lines: Receiver<String>,
    deadline: Instant,
    _qemu: Running,
    _files: Running,
}

/// What a machine says next.
#[derive(Debug)]
pub enum Said {
    Line(String),
    /// It has ended.
    End,
    /// It has not said anything for as long as was waited.
    Nothing,
}

impl Machine {
    /// Boots `kernel` on this host's files. The kernel's own messages go to `directory/console.log`. It lives for
    /// `patience` at most.
    ///
    /// # Errors
    /// A program is missing or cannot be started.
    pub fn boot(
        kernel: &Kernel,
        accelerator: Accelerator,
        initramfs: &Path,
        directory: &Path,
        patience: Duration,
    ) -> Result<Self> {
        let deadline = Instant::now() + patience;
        let socket = directory.join("files.sock");
        let files = share_files(&socket, directory)?;
        let mut qemu = Command::new(QEMU);
        qemu.args(accelerator.arguments())
            .args(["-cpu", "max", "-m", MEMORY])
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            // Files are shared through memory.
            .args(["-no-reboot", "-machine", "memory-backend=memory"])
            .arg("-object")
            .arg(format!(
                "memory-backend-memfd,id=memory,size={MEMORY},share=on"
            ))
            .arg("-chardev")
            .arg(format!("socket,id=files,path={}", socket.display()))
            .args(["-device", "vhost-user-fs-pci,chardev=files,tag=host"])
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(initramfs)
            .args(["-append", "console=ttyS0 quiet panic=-1"])
            .arg("-serial")
            .arg(format!("file:{}", directory.join("console.log").display()))
            .args(["-serial", "stdio"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(directory.join("qemu.log"))?);
        let mut qemu = Running::start(&mut qemu)?;
        let output = qemu.0.stdout.take().context("QEMU has no output")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            // What a test prints need not be UTF-8.
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                // A terminal ends lines with a carriage return besides.
                let line = line.trim_end_matches('\r').to_owned();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            lines,
            deadline,
            _qemu: qemu,
            _files: files,
        })
    }

    /// Waits for the next line, for `patience` at most and never longer than the machine's life.
    pub fn next_line(&self, patience: Duration) -> Said {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(patience.min(left)) {
            Ok(line) => Said::Line(line),
            Err(RecvTimeoutError::Disconnected) => Said::End,
            Err(RecvTimeoutError::Timeout) => Said::Nothing,
        }
    }
}

/// A program that is killed when it is dropped.
#[derive(Debug)]
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        show(command);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self(child))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has been waited for, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Serves the host's root directory to one machine. What it is asked to change it would: the machine mounts it read-only.
fn share_files(socket: &Path, directory: &Path) -> Result<Running> {
    const PATIENCE: Duration = Duration::from_secs(10);
    const STEP: Duration = Duration::from_millis(20);
    let program = VIRTIOFSD
        .into_iter()
        .find(|path| Path::new(path).exists())
        .with_context(|| missing(VIRTIOFSD[0]))?;
    let _ = fs::remove_file(socket);
    let mut command = Command::new(program);
    command
        .arg(format!("--socket-path={}", socket.display()))
        // Nothing changes while the machine runs, so all it reads may stay in its memory.
        .args([
            "-o",
            "source=/",
            "-o",
            "sandbox=chroot",
            "-o",
            "cache=always",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(directory.join("virtiofsd.log"))?);
    let mut files = Running::start(&mut command)?;
    let deadline = Instant::now() + PATIENCE;
    while !socket.exists() {
        if let Some(status) = files.0.try_wait()? {
            bail!(
                "{program} ended at once ({status}): {}",
                directory.join("virtiofsd.log").display()
            );
        }
        if Instant::now() > deadline {
            bail!("{program} offers no socket after {PATIENCE:?}");
        }
        thread::sleep(STEP);
    }
    Ok(files)
}

/// Whether a virtual machine can be started at all.
///
/// # Errors
/// What is missing, and how it comes here.
pub fn require() -> Result<()> {
    if !command::is_root()? {
        bail!(
            "a virtual machine shares this host's files through virtiofsd, which needs root: run this as root"
        );
    }
    for program in [QEMU, "busybox", "dpkg-deb"] {
        find_program(program).with_context(|| missing(program))?;
    }
    Ok(())
}

fn missing(program: &str) -> String {
    format!("{program} is missing: run `cargo xtask setup --vm`")
}
