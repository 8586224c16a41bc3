//! `shaper run`: the controller in the foreground.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context;
use clap::Args;
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
};
use tracing::{info, warn};

use super::{config::ConfigArgs, log};
use crate::{
    config::Config,
    confine::{Files, confine},
    control::ControlSocket,
    controller::{Controller, Recorder, Reloads},
    handle::Handle,
    history::Keeper,
    kernel::{self, CgroupRoot, Loaded},
    metrics::Metrics,
    object,
    paths::{self, Instance},
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
    /// Append a trace of all requests to this file, for `shaper simulate`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Runs until SIGINT or SIGTERM.
///
/// # Errors
/// When the configuration is wrong, another controller has the instance, or the kernel refuses; nothing stays attached.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    log::init();
    let config = args.config.load()?;
    for warning in &config.warnings {
        warn!("{warning}");
    }
    kernel::require_capabilities()?;
    let control = args
        .control
        .clone()
        .unwrap_or_else(|| args.instance.control_socket());
    let control = ControlSocket::bind(&control)?;
    let loaded = kernel::load(object::KERNEL_OBJECT)?;
    confine(&files(args, &config))?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the control loop")?;
    runtime.block_on(control_loop(args, config, control, loaded))
}

/// What the controller goes on reading and writing.
fn files<'a>(args: &RunArgs, config: &'a Config) -> Files<'a> {
    let written = [Some(&args.state), args.record.as_ref()];
    let written = written.into_iter().flatten().cloned();
    // Class cgroups that are absent are made, and the top of the cgroup tree has mode 0555: there root needs
    // CAP_DAC_OVERRIDE. A tree that is not found is told of where they are made.
    let root = CgroupRoot::find().ok();
    let classes = config.settings.classes.iter();
    let classes = classes.flat_map(|class| &class.cgroups);
    let classes = classes.filter(|cgroup| !cgroup.contains(['*', '?', '[']));
    let classes = classes.filter_map(|cgroup| Some(root.as_ref()?.join(cgroup)));
    Files {
        config: &config.origin,
        written: written.chain(classes).collect(),
    }
}

async fn control_loop(
    args: &RunArgs,
    config: Config,
    control: ControlSocket,
    loaded: Loaded,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let reloads = Reloads::new(config.origin.clone()).context("cannot wait for SIGHUP")?;
    let metrics = Arc::new(Metrics::new(env!("CARGO_PKG_VERSION")));
    let (handle, commands) = Handle::new(serve::HEALTH_PATIENCE);
    let listen = args.listen.unwrap_or(config.settings.listen);
    let recorder = args
        .record
        .as_deref()
        .map(|path| {
            Recorder::append_to(path)
                .with_context(|| format!("cannot record to {}", path.display()))
        })
        .transpose()?;
    let token_file = config.settings.token_file.as_deref();
    let token = token_file.map(serve::Token::read).transpose()?;
    // Before anything is held: both wait for a disk.
    let (history, windows) =
        Keeper::start(&args.instance.history(&args.state)).context("cannot keep the history")?;
    let state = StateKeeper::open(args.instance.state_dir(&args.state));
    let mut controller = Controller::start(loaded, &config, metrics.clone(), state).await?;
    controller.keep_history(history, &windows);
    if let Some(recorder) = recorder {
        controller.record(recorder);
    }
    let options = serve::Options {
        listen,
        limits: serve::Limits::default(),
        token,
    };
    let server = match serve::spawn(options, control, handle, metrics) {
        Ok(server) => server,
        Err(error) => {
            controller.detach();
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
