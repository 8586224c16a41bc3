//! `shaper run`: the controller in the foreground.

use std::{
    io::{self, IsTerminal},
    net::SocketAddr,
    path::{self, Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use clap::Args;
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
};
use tracing::{info, warn};

use super::{config::ConfigArgs, log};
use crate::{
    authority::Authority,
    config::{Config, is_pattern},
    confine::{Files, confine},
    control::ControlSocket,
    controller::{Controller, Leave, Recorder, Reloads, Start},
    handle::Handle,
    history::Keeper,
    kernel::{self, CgroupRoot, Found, KernelError, Maps, PinnedSet, Pins, bpffs},
    metrics::Metrics,
    object,
    paths::{self, Instance, RUN_DIR},
    serve,
    state::StateKeeper,
    systemd::notify,
};

/// Run the controller in the foreground.
///
/// The configuration is read again on SIGHUP and when its files change; a bad one is rejected and changes nothing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shaper run                                                  # with /etc/shaper, or the example lanes
  shaper run --config ./config --listen 127.0.0.1:9900
  shaper run --record /var/lib/shaper/trace.jsonl             # for `shaper simulate`")]
pub struct RunArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Where to serve HTTP [default: `listen` in shaper.toml, 127.0.0.1:9797]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Control socket of the controller [default: /run/shaper/NAME.sock]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Name of the controller, where a host has several
    #[arg(long, value_name = "NAME", default_value_t)]
    instance: Instance,
    /// Where pauses, adaptation and the history are kept over a restart
    #[arg(long, value_name = "DIR", default_value = paths::STATE_DIR)]
    state: PathBuf,
    /// On SIGTERM and SIGINT, detach everything and let what is held go. Else the programs stay attached, and what is held
    /// stays held for the next controller [default: true at a terminal, else false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        overrides_with = "detach_on_exit"
    )]
    detach_on_exit: Option<bool>,
    /// Append a trace of all requests to this file, for `shaper simulate`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

impl RunArgs {
    /// What becomes of the programs at the end, and the bpf file system. One that cannot be had is an error only if it was
    /// asked for: in a container, for one, everything then goes with the process.
    fn leave(&self) -> Result<(Leave, Option<PathBuf>), KernelError> {
        let interactive = io::stdin().is_terminal() && io::stderr().is_terminal();
        if !self.detach_on_exit.unwrap_or(interactive) {
            match bpffs::find_or_mount() {
                Ok(bpffs) => return Ok((Leave::Attached, Some(bpffs))),
                Err(error) if self.detach_on_exit.is_some() => return Err(error),
                Err(error) => {
                    warn!(%error, "the programs go with this process: what is held goes on when it ends");
                }
            }
        }
        Ok((Leave::Nothing, bpffs::find()?))
    }
}

/// Runs until SIGINT, SIGTERM or `shaper detach`.
///
/// # Errors
/// When the configuration is wrong, another controller has the instance, or the kernel refuses; what an earlier
/// controller has left is as before then, and nothing else stays.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    log::init()?;
    let config = args.config.load()?;
    for warning in &config.warnings {
        warn!("{warning}");
    }
    kernel::require_capabilities()?;
    CgroupRoot::find()?;
    let mut authority = Authority::claim(&args.instance)?;
    let control = args
        .control
        .clone()
        .unwrap_or_else(|| args.instance.control_socket());
    // It is written down for others, who have another working directory.
    let control = ControlSocket::bind(&path::absolute(control)?)?;
    let listener = serve::Listener::bind(args.listen.unwrap_or(config.settings.listen))?;
    // While this process may still read what belongs to others.
    let token_file = config.settings.token_file.as_deref();
    let token = token_file.map(serve::Token::read).transpose()?;
    authority
        .take(control.path(), config.origin.to_string())
        .context("cannot write down who has the instance")?;
    let state = StateKeeper::open(args.instance.state_dir(&args.state));

    let (leave, bpffs) = args.leave()?;
    let pins = bpffs.map(|bpffs| Pins::of(&bpffs, &args.instance));
    let found = match &pins {
        Some(pins) => pins.find(&kernel::scratch(object::KERNEL_OBJECT)?)?,
        None => Found::default(),
    };
    // Something stays of an earlier controller whatever becomes of this start.
    let pinned = found.whole.is_some() || !found.unfit.is_empty();
    authority.set_stays(pinned || !authority.record().created.is_empty());
    let fresh = match leave {
        Leave::Attached => pins.as_ref().map(Pins::current),
        Leave::Nothing => None,
    };
    let maps = match (&found.whole, &fresh) {
        (Some(set), _) => Maps::Adopted(set),
        (None, Some(set)) => Maps::Pinned(set),
        (None, None) => Maps::Own,
    };
    let mut loaded = kernel::load(object::KERNEL_OBJECT, maps)?;
    loaded.programs.know(&found)?;
    // Not before there is something to take their place.
    for set in &found.unfit {
        set.open_gates();
    }
    let created = &authority.record().created;
    confine(&files(args, &config, fresh.as_ref(), created))?;
    let start = Start {
        authority,
        loaded,
        adopted: found.whole.is_some(),
        replaced: found.unfit,
        leave,
        state,
    };
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the control loop")?;
    let surfaces = Surfaces {
        control,
        listener,
        token,
    };
    runtime.block_on(control_loop(args, config, surfaces, start))
}

/// What the controller goes on reading and writing. `created`: the cgroups that an earlier one made.
fn files<'a>(
    args: &RunArgs,
    config: &'a Config,
    pins: Option<&PinnedSet>,
    created: &[PathBuf],
) -> Files<'a> {
    let written = [Some(&args.state), args.record.as_ref()];
    let written = written.into_iter().flatten().cloned();
    // Links to cgroups that come later are pinned, and the lock file says to which.
    let pinned = pins.map(|pins| pins.path().to_owned());
    let written = written.chain(pinned).chain([RUN_DIR.into()]);
    // Class cgroups that are absent are made, and the top of the cgroup tree has mode 0555: there root needs
    // CAP_DAC_OVERRIDE. A tree that is not found is told of where they are made.
    let root = CgroupRoot::find().ok();
    let classes = config.settings.classes.iter();
    let classes = classes.flat_map(|class| &class.cgroups);
    let classes = classes.filter(|cgroup| !is_pattern(cgroup));
    let classes = classes.filter_map(|cgroup| Some(root.as_ref()?.join(cgroup)));
    // Those that are there are removed in the end.
    let parents = created.iter().filter_map(|cgroup| cgroup.parent());
    let parents = parents.map(Path::to_owned);
    Files {
        config: &config.origin,
        written: written.chain(classes).chain(parents).collect(),
    }
}

/// Where the controller can be talked to.
struct Surfaces {
    control: ControlSocket,
    listener: serve::Listener,
    /// For changes over HTTP.
    token: Option<serve::Token>,
}

async fn control_loop(
    args: &RunArgs,
    config: Config,
    surfaces: Surfaces,
    start: Start,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let reloads = Reloads::new(config.origin.clone()).context("cannot wait for SIGHUP")?;
    let metrics = Arc::new(Metrics::new(env!("CARGO_PKG_VERSION")));
    let (handle, commands) = Handle::new(serve::HEALTH_PATIENCE);
    let recorder = args
        .record
        .as_deref()
        .map(|path| {
            Recorder::append_to(path)
                .with_context(|| format!("cannot record to {}", path.display()))
        })
        .transpose()?;
    // Before anything is held: both wait for a disk.
    let (history, windows) =
        Keeper::start(&args.instance.history(&args.state)).context("cannot keep the history")?;
    let adopted = start.adopted;
    let mut controller = Controller::start(start, &config, metrics.clone()).await?;
    controller.keep_history(history, &windows);
    if let Some(recorder) = recorder {
        controller.record(recorder);
    }
    let options = serve::Options {
        listener: surfaces.listener,
        limits: serve::Limits::default(),
        token: surfaces.token,
    };
    let server = match serve::spawn(options, surfaces.control, handle, metrics) {
        Ok(server) => server,
        Err(error) => {
            controller.abandon(adopted);
            return Err(error.into());
        }
    };
    info!(
        instance = %args.instance,
        lanes = config.lanes.len(),
        enforcing = config.lanes.iter().filter(|lane| lane.enforces()).count(),
        http = %server.addr(),
        "running; configuration from {}", config.origin
    );
    notify::ready(&controller.standing());
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => info!("SIGTERM"),
            _ = interrupt.recv() => info!("SIGINT"),
        }
        notify::stopping();
    };
    let ended = controller.run(commands, reloads, stop).await;
    server.shutdown();
    ended.map_err(Into::into)
}
