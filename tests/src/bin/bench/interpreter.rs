//! An asyncio semaphore in a Python process: what waiting for a slot costs where there is no host, no network and nobody
//! else. Nothing that spans processes can be faster.

use std::process::Command;

use anyhow::{Context, Result, ensure};

const PROGRAM: &str = r#"
import asyncio, json, sys, time

waiters, handovers = int(sys.argv[1]), int(sys.argv[2])

async def main():
    slot, done, times, freed = asyncio.Semaphore(1), asyncio.Event(), [], None

    async def client():
        nonlocal freed
        await slot.acquire()
        if freed is not None:
            times.append(time.perf_counter_ns() - freed)
        if len(times) == handovers:
            done.set()
            return
        asyncio.create_task(client())
        await asyncio.sleep(0)
        freed = time.perf_counter_ns()
        slot.release()

    clients = [asyncio.create_task(client()) for _ in range(waiters + 1)]
    await done.wait()
    print(json.dumps(times))

asyncio.run(main())
"#;

/// Nanoseconds from each release to the next waiter's turn, with so many waiters.
pub fn semaphore_handovers(waiters: usize, handovers: usize) -> Result<Vec<u64>> {
    let output = Command::new("python3")
        .args(["-c", PROGRAM, &waiters.to_string(), &handovers.to_string()])
        .output()
        .context("the floor is measured with python3, and there is none: `cargo xtask setup` installs it")?;
    ensure!(
        output.status.success(),
        "python3 failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("python3 printed no figures")
}
