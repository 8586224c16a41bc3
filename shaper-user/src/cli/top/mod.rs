//! `shaper top`: the lanes and their waiters, live, full screen.
//!
//! Three threads: one reads keys, one talks to the controller, and this one draws. So neither a slow controller nor a
//! slow terminal holds up the keys.

mod model;
mod prompt;
mod render;
mod slots;
mod theme;
mod worker;

use std::{
    io::{self, IsTerminal},
    thread,
};

use anyhow::{Context, bail};
use clap::Args;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyEventKind},
};
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
};

use self::{
    model::{Effect, Input, Model},
    theme::Theme,
    worker::Worker,
};
use super::{ControllerArgs, follow::Follow};

/// Show the lanes and who waits in them, live and full screen
///
/// `?` shows the keys, which also pause, resume and change a lane; `q` quits.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  shaper top
  shaper top --instance gpu-2")]
pub struct TopArgs {
    #[command(flatten)]
    controller: ControllerArgs,
}

/// Runs until the operator quits.
///
/// # Errors
/// When there is no terminal, or no controller answers at the start; later that is shown, and asked again.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    if !io::stdout().is_terminal() {
        bail!("standard output is no terminal: use `shaper status`, or `shaper status --json`");
    }
    let mut follow = Follow::begin(&args.controller)?;
    let model = Model::new(worker::look(&mut follow)?);
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot wait for keys")?;
    runtime.block_on(async {
        let stops = Stops::new().context("cannot wait for signals")?;
        let (inputs, arrived) = mpsc::unbounded_channel();
        let worker = Worker::start(follow, inputs.clone()).context("cannot start a thread")?;
        // Also sets a panic hook that gives the terminal back before the message is printed.
        let terminal = ratatui::try_init().context("cannot take the terminal over")?;
        let ended = match read_keys(inputs) {
            Ok(()) => show(terminal, model, arrived, &worker, stops).await,
            Err(error) => Err(error.into()),
        };
        // Raw mode and the alternate screen end whatever has happened. If the terminal is gone, so are they.
        let _ = ratatui::try_restore();
        ended
    })
}

/// What has to be drawn, or the screen's size.
enum Arrival {
    Input(Input),
    Resized,
    /// No more keys will come.
    Lost(io::Error),
}

async fn show(
    mut terminal: DefaultTerminal,
    mut model: Model,
    mut arrived: UnboundedReceiver<Arrival>,
    worker: &Worker,
    mut stops: Stops,
) -> anyhow::Result<()> {
    let theme = Theme::from_environment();
    loop {
        terminal
            .draw(|frame| render::draw(frame, &model, &theme))
            .context("cannot draw")?;
        let arrival = tokio::select! {
            () = stops.wait() => return Ok(()),
            arrival = arrived.recv() => arrival.context("a thread of the screen has ended")?,
        };
        match arrival {
            Arrival::Input(input) => match model.update(input) {
                Some(Effect::Quit) => return Ok(()),
                Some(Effect::Change(change)) => worker.change(change),
                None => {}
            },
            Arrival::Resized => {}
            Arrival::Lost(error) => return Err(error).context("cannot read the keys"),
        }
    }
}

/// Reads keys on a thread of its own, which ends with the process: nothing interrupts it.
fn read_keys(inputs: UnboundedSender<Arrival>) -> io::Result<()> {
    thread::Builder::new()
        .name("keys".into())
        .spawn(move || {
            loop {
                let arrival = match event::read() {
                    Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                        Arrival::Input(Input::Key(key))
                    }
                    Ok(Event::Resize(..)) => Arrival::Resized,
                    Ok(_) => continue,
                    Err(error) => Arrival::Lost(error),
                };
                let last = matches!(arrival, Arrival::Lost(_));
                if inputs.send(arrival).is_err() || last {
                    return;
                }
            }
        })
        .map(|_| ())
}

/// The signals that end the screen, with the terminal given back.
struct Stops([Signal; 3]);

impl Stops {
    fn new() -> io::Result<Self> {
        Ok(Self([
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    async fn wait(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
