//! What the kernel knows about a gateway's process: CPU time and resident memory.

use std::fs;

/// CPU time of all threads of a process, in nanoseconds, as the scheduler accounts it. Exact while the process sleeps;
/// of a running thread up to a tick is missing.
pub fn cpu_ns(pid: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let one = |path: std::path::PathBuf| -> Option<u64> {
        let text = fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    tasks.flatten().filter_map(|task| one(task.path())).sum()
}

/// Resident memory of a process in KiB.
pub fn rss_kib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let row = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    row.and_then(|row| row.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
