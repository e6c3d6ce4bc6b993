//! What the kernel says of this process, for the `process_*` metrics.

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// Readings; `None` where the kernel does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Readings {
    /// User and system time.
    pub cpu_seconds: Option<f64>,
    /// Resident set.
    pub resident_bytes: Option<u64>,
    /// Address space.
    pub virtual_bytes: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// Open descriptors.
    pub open_fds: Option<u64>,
    /// Soft limit of them.
    pub max_fds: Option<u64>,
    /// Unix time of its start.
    pub start_seconds: Option<f64>,
}

impl Readings {
    /// Reads `/proc`.
    pub fn take() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let system = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        // The listing holds a descriptor of its own.
        let open = std::fs::read_dir("/proc/self/fd").map(|dir| dir.count().saturating_sub(1));
        Readings {
            open_fds: open.ok().and_then(|n| u64::try_from(n).ok()),
            max_fds: getrlimit(Resource::Nofile).current,
            ..Self::parse(&stat, &system, clock_ticks_per_second(), page_size() as u64)
        }
    }

    /// From the texts of `/proc/self/stat` and `/proc/stat`.
    fn parse(stat: &str, system: &str, ticks: u64, page: u64) -> Self {
        // The second field is the name in parentheses, and may hold anything.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        // Numbered from 1 in proc(5); the first here is field 3.
        let field = |n: usize| fields.get(n - 3).and_then(|text| text.parse::<u64>().ok());
        let seconds = |n: u64| n as f64 / ticks.max(1) as f64;
        let boot = system.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
        Readings {
            cpu_seconds: field(14).zip(field(15)).map(|(user, sys)| seconds(user + sys)),
            threads: field(20),
            start_seconds: boot.zip(field(22)).map(|(boot, start)| boot + seconds(start)),
            virtual_bytes: field(23),
            resident_bytes: field(24).map(|pages| pages * page),
            open_fds: None,
            max_fds: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Readings;

    #[test]
    fn fields_are_those_of_proc_5_whatever_the_name() {
        let stat =
            "7 (a) b (c) S 1 1 1 0 -1 4194560 5 0 0 0 150 50 0 0 20 0 9 0 300 4096 2 18446744073709551615";
        let got = Readings::parse(stat, "cpu 1\nbtime 1000\n", 100, 4096);
        assert_eq!((got.cpu_seconds, got.threads, got.start_seconds), (Some(2.0), Some(9), Some(1003.0)));
        assert_eq!((got.virtual_bytes, got.resident_bytes), (Some(4096), Some(8192)));
        assert_eq!(Readings::parse("", "", 100, 4096), Readings::default());
    }
}
