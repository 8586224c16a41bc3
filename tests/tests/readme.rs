//! The README's quick start, followed to the letter on a host on which shaper has never been: its commands are read from
//! the README and typed into terminals.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result, ensure};
use shaper_tests::browser::Browser;
use shaper_tests::cgroup::cgroup2_mount;
use shaper_tests::clock::poll_until;
use shaper_tests::fresh_host::{FreshHost, checkout};
use shaper_tests::stage::{Scale, Stage};
use shaper_tests::terminal::Terminal;

/// For a program to come up; with `SHAPER_LONG=1` one of them is built first.
fn patience() -> Duration {
    Scale::asked().pick(Duration::from_secs(900), Duration::from_secs(90))
}

const CTRL_C: &str = "\x03";

/// The commands of one fenced block, and whose terminal they are for.
#[derive(Debug)]
struct Step {
    terminal: String,
    commands: String,
}

/// What a reader sees after a step.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// The last program goes on and shows this.
    Stays(&'static [&'static str]),
    /// All programs end well, and this is on the screen.
    Ends(&'static [&'static str]),
    /// As `Ends`, if need be at a later try.
    EndsAgain(&'static [&'static str]),
}

/// The steps in the order of the README, each by its first words.
const STEPS: [(&str, Then); 8] = [
    (
        "python3 docs/examples/slow-gateway.py",
        Then::Stays(&["listening on 127.0.0.1:8080", "60 s for each answer"]),
    ),
    ("cargo xtask run", Then::Stays(&["127.0.0.1:9797"])),
    ("sudo install", Then::Ends(&[])),
    (
        "sudo mkdir -p /etc/shaper/lanes.d",
        Then::Ends(&["lane stub: 1 in flight", "127.0.0.1:8080"]),
    ),
    ("sudo shaper status", Then::EndsAgain(&["stub", "0/1"])),
    ("sudo shaper assign", Then::Ends(&["shaper/bulk"])),
    (
        "sudo shaper status",
        // `top`, with the numbers of its lane, and with who waits.
        Then::Stays(&["stub", "1/1", "2 wait on purpose", "curl", "q quit"]),
    ),
    ("sudo rm -r", Then::Ends(&[])),
];

fn quick_start() -> Result<Vec<Step>> {
    let path = checkout().join("README.md");
    let readme = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let section = readme
        .split_once("<!-- ANCHOR: quick-start -->")
        .and_then(|(_, rest)| rest.split_once("<!-- ANCHOR_END: quick-start -->"));
    let (section, _) = section.context("the README has no quick start")?;
    let blocks = section.split("```sh terminal=").skip(1);
    blocks
        .map(|block| {
            let (terminal, rest) = block.split_once('\n').context("a block without lines")?;
            let (commands, _) = rest.split_once("```").context("a block without an end")?;
            Ok(Step {
                terminal: terminal.to_owned(),
                commands: commands.to_owned(),
            })
        })
        .collect()
}

/// Types commands, and waits for the end of the last one.
fn run(terminal: &mut Terminal, commands: &str, mark: usize) -> Result<()> {
    terminal.press(commands)?;
    // The echo of this line differs from what it prints.
    terminal.press(&format!("echo step {mark} ended with $?\n"))?;
    let end = format!("step {mark} ended with ");
    let is_over = |screen: &str| {
        let ends = screen.lines().filter_map(|line| line.split_once(&end));
        ends.map(|(_, code)| code.trim()).any(|code| code != "$?")
    };
    poll_until(patience(), || is_over(&terminal.screen()).then_some(()))
        .with_context(|| format!("{commands:?} did not end"))?;
    let screen = terminal.screen();
    ensure!(screen.contains(&format!("{end}0")), "it failed:\n{screen}");
    Ok(())
}

fn shows(terminal: &Terminal, words: &[&str]) -> bool {
    let screen = terminal.screen();
    words.iter().all(|word| screen.contains(word))
}

fn take(step: &Step, then: Then, mark: usize, terminal: &mut Terminal) -> Result<()> {
    match then {
        Then::Stays(words) => {
            terminal.press(&step.commands)?;
            poll_until(patience(), || shows(terminal, words).then_some(()))
                .with_context(|| format!("{words:?} did not come"))
        }
        Then::Ends(words) => {
            run(terminal, &step.commands, mark)?;
            ensure!(shows(terminal, words), "{words:?} are not there");
            Ok(())
        }
        Then::EndsAgain(words) => {
            const TRIES: usize = 10;
            for again in 0..TRIES {
                run(terminal, &step.commands, mark + 100 * again)?;
                if shows(terminal, words) {
                    return Ok(());
                }
                thread::sleep(Duration::from_secs(1));
            }
            take(step, Then::Ends(words), mark, terminal)
        }
    }
}

/// Tried as a new user would: from the README alone, a class is assigned, a lane added, and held processes are seen in
/// `status`, at `/api/waiters`, in `top` and on the page.
#[test]
fn the_quick_start_shows_a_held_process() -> Result<()> {
    let stage = Stage::set()?;
    FreshHost::visit(&stage, |host| {
        let steps = quick_start()?;
        assert_eq!(steps.len(), STEPS.len(), "{steps:#?}");
        let mut terminals = Terminals::new();
        follow(host, &steps, &mut terminals).with_context(|| {
            let screens = terminals.iter();
            let screens =
                screens.map(|(name, terminal)| format!("{name}:\n{}\n", terminal.screen()));
            format!("the terminals:\n{}", screens.collect::<String>())
        })
    })
}

/// By their names in the README.
type Terminals = BTreeMap<String, Terminal>;

fn follow(host: &FreshHost, steps: &[Step], terminals: &mut Terminals) -> Result<()> {
    // Started before anybody waits: it takes its time.
    let mut page = Browser::start()?;
    for (number, (step, (begins, then))) in steps.iter().zip(STEPS).enumerate() {
        assert!(step.commands.starts_with(begins), "{step:?}");
        if begins.starts_with("sudo rm") {
            see_the_page(&mut page)?;
            close(terminals)?;
        }
        if !terminals.contains_key(&step.terminal) {
            terminals.insert(step.terminal.clone(), host.shell()?);
        }
        let terminal = terminals
            .get_mut(&step.terminal)
            .context("a terminal that has just been opened")?;
        take(step, then, number, terminal).with_context(|| format!("{step:#?}"))?;
    }
    for path in ["/etc/shaper", "/var/lib/shaper", "/usr/local/bin/shaper"] {
        assert!(!Path::new(path).exists(), "{path} is left");
    }
    Ok(())
}

/// D9: the page shows who waits, as `top` does.
fn see_the_page(page: &mut Browser) -> Result<()> {
    const CARD: &str = r#"document.querySelector('[data-lane="stub"]')"#;
    page.open("http://127.0.0.1:9797/")?;
    page.wait_for(CARD)?;
    page.evaluate::<bool>(&format!("{CARD}.querySelector('.waiters').open = true"))?;
    page.wait_for(&format!(
        r#"[...{CARD}.querySelectorAll('.waiters tbody tr')].some((row) => row.innerText.includes("curl"))"#
    ))?;
    assert_eq!(page.complaints()?, [""; 0]);
    Ok(())
}

/// Leaves `top`, waits for the answers if there is time, leaves the shell that is in a class, and stops the stub and the
/// controller, of which nothing is left then.
fn close(terminals: &mut Terminals) -> Result<()> {
    let find = |name: &str| format!("the README has no terminal {name}");
    let watch = terminals.get_mut("watch").with_context(|| find("watch"))?;
    watch.press("q")?;
    watch.wait_until("the shell", |screen| !screen.contains("q quit"))?;
    let mut yours = terminals.remove("yours").with_context(|| find("yours"))?;
    if Scale::asked() == Scale::Full {
        let all = |screen: &str| screen.matches("answered").count() == 3;
        poll_until(Duration::from_secs(300), || {
            all(&yours.screen()).then_some(())
        })
        .with_context(|| format!("three answers did not come:\n{}", yours.screen()))?;
    }
    yours.press("exit\n")?;
    // What runs in the background goes with its terminal.
    drop(yours);
    let gateway = terminals
        .get_mut("gateway")
        .with_context(|| find("gateway"))?;
    let seen = gateway.screen();
    assert!(
        seen.contains("1 at once") && !seen.contains("2 at once"),
        "{seen}"
    );
    gateway.press(CTRL_C)?;
    let controller = terminals
        .get_mut("controller")
        .with_context(|| find("controller"))?;
    controller.press(CTRL_C)?;
    run(controller, "true\n", 0)?;
    // Who has not waited for the answers leaves clients in the class.
    if Scale::asked() == Scale::Full {
        let classes = cgroup2_mount()?.join("shaper");
        ensure!(!classes.exists(), "{} is left", classes.display());
    }
    Ok(())
}
