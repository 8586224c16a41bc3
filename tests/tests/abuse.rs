//! A process that misbehaves hurts itself: memory stays bounded, other lanes and other accounts are served as before.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use shaper_tests::client::Running;
use shaper_tests::clock::poll_until;
use shaper_tests::controller::Controller;
use shaper_tests::crowd::{Crowd, Habit, Report};
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::kernel_state::Maps;
use shaper_tests::lane_file::LaneFile;
use shaper_tests::open_files;
use shaper_tests::stage::{Scale, Stage};

const PATIENCE: Duration = Duration::from_secs(300);

/// How many times as long as undisturbed a call may take beside a process that takes a core for itself: this machine has
/// few.
const RATIO: u64 = 20;
/// What a call takes at least, for the ratio: the differences below are the scheduler's.
const LEAST_US: u64 = 5_000;

/// Calls of each quiet client.
const CALLS: u64 = 50;

/// Memory that the controller may need in all: its records are 22 MB, mapped from the start.
const RESIDENT: u64 = 200 << 20;

struct Scene {
    stage: Stage,
    abused: Gateway,
    other: Gateway,
    controller: Controller,
}

impl Scene {
    fn set(max_queue: usize) -> Result<Self> {
        // What finds the table full reaches the gateway, which is in this process.
        open_files::raise()?;
        let stage = Stage::set()?;
        let abused = Gateway::builder()
            .listen_v4()?
            .listen_v4()?
            .listen_v4()?
            .listen_v4()?
            .start()?;
        let other = Gateway::answering(Answer::at_once())?;
        let lane = |gateway: &Gateway| {
            LaneFile::over(gateway.addresses())
                .limit(4)
                .queue(max_queue)
                .line("abort_hold = \"100ms\"\nticket_grace = \"0s\"\n[account]\nmax_inflight = 2")
        };
        let controller = Controller::builder(&stage)?
            .lane("abused", lane(&abused))?
            .lane("other", lane(&other))?
            // Tens of thousands of connects within seconds keep an unoptimised controller busy for longer than the default.
            .settings("fail_after = \"60s\"")?
            .start()?;
        Ok(Self {
            stage,
            abused,
            other,
            controller,
        })
    }

    fn start(&self, crowd: &Crowd) -> Result<Running<Report>> {
        let cgroup = self.stage.cgroups().group(&crowd.label)?;
        crowd.client()?.spawn_in(&cgroup)
    }

    /// The median call of a quiet client, in microseconds.
    fn call(&self, gateway: &Gateway, label: &str) -> Result<u64> {
        let crowd = Crowd::new(Habit::Call, gateway.addresses(), label, CALLS);
        let report = self.start(&crowd)?.finish(PATIENCE)?;
        assert_eq!(report.answered, CALLS, "{label}: {report:?}");
        Ok(report.median_us)
    }

    /// Another lane, and another account of the same lane: in the class of the abuser and in a more urgent one.
    fn victims(&self) -> Result<[u64; 3]> {
        Ok([
            self.call(&self.other, "bulk/victim")?,
            self.call(&self.abused, "bulk/victim")?,
            self.call(&self.abused, "interactive/victim")?,
        ])
    }

    /// Whether the lane has anything to do.
    fn is_busy(&self) -> Result<bool> {
        let lane = self.controller.lane("abused")?;
        Ok(lane.inflight + lane.queued + lane.idle_connections > 0)
    }

    /// Runs the abusers and, once they have got so far, everybody else.
    fn suffer(
        &self,
        abusers: &[Crowd],
        so_far: impl Fn(&Self) -> Result<bool>,
    ) -> Result<Vec<Report>> {
        let before = self.victims()?;
        let running = abusers
            .iter()
            .map(|crowd| self.start(crowd))
            .collect::<Result<Vec<_>>>()?;
        let begun = || so_far(self).is_ok_and(|far| far).then_some(());
        poll_until(PATIENCE, begun).context("the abusers do not get so far")?;
        let during = self.victims()?;
        let resident = self.resident()?;
        let mut reports = Vec::new();
        for crowd in running {
            reports.push(crowd.finish(PATIENCE)?);
        }
        println!(
            "{reports:?}\nmedian calls in µs: before {before:?}, during {during:?}; resident {resident}"
        );
        for (before, during) in before.into_iter().zip(during) {
            assert!(
                during <= before.max(LEAST_US) * RATIO,
                "{before} µs, then {during} µs"
            );
        }
        assert!(resident < RESIDENT, "{resident} bytes");
        // A loop that has tens of thousands of ends to hear of may be late with its answers.
        let quiet = || {
            self.controller
                .lane("abused")
                .is_ok_and(|lane| lane.is_quiet())
                .then_some(())
        };
        poll_until(PATIENCE, quiet).context("the lane is not quiet in the end")?;
        let kernel = Maps::of(self.controller.pid())?;
        assert!(
            kernel.first_lane()?.is_quiet(),
            "{:?}",
            kernel.first_lane()?
        );
        Ok(reports)
    }

    fn resident(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.controller.pid()))?;
        let kibibytes = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))
            .context("no VmRSS")?;
        Ok(kibibytes.trim().parse::<u64>()? * 1024)
    }

    fn ungoverned(&self, reason: &str) -> Result<f64> {
        let metrics = self.controller.metrics()?;
        Ok(metrics.sum("shaper_ungoverned_total", &[("reason", reason)]))
    }
}

fn abuser(scene: &Scene, habit: Habit, connects: u64) -> Crowd {
    Crowd::new(habit, scene.abused.addresses(), "bulk/abuser", connects)
}

/// D2, D6: a process that opens connections as fast as it can and closes them at once, and one that flaps.
#[test]
fn a_process_that_connects_and_closes_as_fast_as_it_can_hurts_nobody_else() -> Result<()> {
    let connects = Scale::asked().pick(50_000, 20_000);
    let scene = Scene::set(100)?;
    let rush = abuser(&scene, Habit::Rush, connects);
    let flap = Crowd {
        workers: 4,
        ..abuser(&scene, Habit::Flap, connects / 10)
    };
    let reports = scene.suffer(&[rush, flap], Scene::is_busy)?;
    assert_eq!(reports.iter().map(|report| report.broken).sum::<u64>(), 0);
    assert_eq!(scene.ungoverned("table_full")?, 0.0);
    Ok(())
}

/// D2, D6: processes that open more connections than there is room for. What finds the table full passes, and is counted.
#[test]
fn processes_that_keep_more_connections_than_the_table_holds_hurt_nobody_else() -> Result<()> {
    /// Each within the 20,000 descriptors that a process may have where there is no privilege for more.
    const PROCESSES: u64 = 5;
    let (connects, stay) = Scale::asked().pick((14_000, 60), (1_000, 5));
    let scene = Scene::set(65_536)?;
    let rush = Crowd {
        hold: connects as usize,
        stay: Duration::from_secs(stay),
        ..abuser(&scene, Habit::Rush, connects)
    };
    let over = (PROCESSES * connects).saturating_sub(u64::from(shaper_common::MAX_CONNS));
    let reports = scene.suffer(&vec![rush; PROCESSES as usize], |scene| {
        Ok(scene.is_busy()? && scene.ungoverned("table_full")? >= over as f64)
    })?;
    assert!(
        reports.iter().all(|report| report.broken == 0),
        "{reports:?}"
    );
    let full = scene.ungoverned("table_full")?;
    println!("passed because the table was full: {full}");
    assert!(full >= over as f64, "{full} of at least {over}");
    Ok(())
}

/// A8, D6: processes that send nothing, and processes that send one byte at a time.
#[test]
fn processes_that_send_nothing_or_a_byte_at_a_time_hurt_nobody_else() -> Result<()> {
    let scene = Scene::set(1_000)?;
    let silent = Crowd {
        workers: 4,
        hold: 100,
        stay: Duration::from_secs(5),
        ..abuser(&scene, Habit::Silent, 20)
    };
    let trickle = Crowd {
        workers: 4,
        ..abuser(&scene, Habit::Trickle, 12)
    };
    let reports = scene.suffer(&[silent, trickle], Scene::is_busy)?;
    assert_eq!(reports[1].answered, 12, "{reports:?}");
    Ok(())
}
