//! `shaper detach`: nothing of an instance stays.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Args;

use super::print;
use crate::{
    authority::{Authority, ClaimError},
    control::{self, Client},
    controller::{let_everyone_go, remove_unused},
    kernel::{self, Found, Namespaces, Pins, bpffs},
    object,
    paths::Instance,
};

/// How long a controller may take to end: it lets requests over HTTP finish.
const PATIENCE: Duration = Duration::from_secs(15);

/// Detach everything of an instance, and let what is held go.
///
/// A running controller is asked to end. What one that is gone has left is removed: programs, maps, the class cgroups that
/// it made and that are empty, its control socket.
#[derive(Debug, Args)]
pub struct DetachArgs {
    /// Name of the controller, where a host has several
    #[arg(long, value_name = "NAME", default_value_t)]
    instance: Instance,
}

/// Removes the instance's traces.
///
/// # Errors
/// When a running controller does not end, or something cannot be removed; when standard output cannot be written to.
pub fn run(args: &DetachArgs) -> anyhow::Result<()> {
    kernel::require_capabilities()?;
    let (mut authority, asked) = claim(&args.instance)?;
    let found = match bpffs::find()? {
        Some(bpffs) => {
            let ours = kernel::scratch(object::KERNEL_OBJECT)?;
            Pins::of(&bpffs, &args.instance).find(&ours)?
        }
        None => Found::default(),
    };
    // Where the layout is not known, what is held goes on at TCP's next try.
    for set in &found.unfit {
        set.open_gates();
    }
    let let_go = match &found.whole {
        Some(set) => {
            let mut nudges = Default::default();
            let_everyone_go(&set.tables()?, &mut nudges, &mut Namespaces::default())
        }
        None => 0,
    };
    let sets: Vec<_> = found.whole.iter().chain(&found.unfit).collect();
    for set in &sets {
        set.remove()?;
    }
    let record = authority.record();
    remove_unused(&record.created);
    if !record.control.as_os_str().is_empty() {
        control::remove_stale(&record.control)
            .with_context(|| format!("cannot remove {}", record.control.display()))?;
    }
    authority.set_stays(false);
    print::out(match (asked, sets.is_empty()) {
        (true, _) => format!("the controller of instance {} has ended\n", args.instance),
        (false, false) => format!(
            "instance {} is detached; {let_go} held connections go on\n",
            args.instance
        ),
        (false, true) => format!("nothing of instance {} was attached\n", args.instance),
    })
}

/// The instance, and whether a controller had to be asked for it.
fn claim(instance: &Instance) -> anyhow::Result<(Authority, bool)> {
    let deadline = Instant::now() + PATIENCE;
    let mut asked = false;
    loop {
        match Authority::claim(instance) {
            Ok(authority) => return Ok((authority, asked)),
            Err(ClaimError::Taken { who, .. }) => match who.control() {
                Some(control) if !asked => {
                    Client::connect(control)
                        .and_then(|mut controller| controller.detach())
                        .with_context(|| {
                            format!("the controller, {who}, cannot be asked to end")
                        })?;
                    asked = true;
                }
                _ if Instant::now() < deadline => sleep(Duration::from_millis(50)),
                _ => bail!("the controller, {who}, does not end: stop it, then try again"),
            },
            Err(error) => return Err(error.into()),
        }
    }
}
