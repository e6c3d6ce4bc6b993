use super::*;

fn samples(rss: impl Fn(u64) -> u64, fds: impl Fn(u64) -> u64) -> Vec<Sample> {
    (0..60).map(|n| Sample { rss_kib: rss(n), fds: fds(n) }).collect()
}

#[test]
fn growth_after_warm_up_is_told_from_noise() {
    let warm_up_then_noise =
        samples(|n| if n < 10 { 8_000 + n * 1_000 } else { 20_000 + n % 3 * 500 }, |n| 400 + n % 5);
    assert!(flat(&warm_up_then_noise).is_ok());
    assert!(flat(&samples(|n| 20_000 + n * 200, |_| 400)).is_err(), "memory grows");
    assert!(flat(&samples(|_| 20_000, |n| 400 + n * 2)).is_err(), "descriptors grow");
    assert!(flat(&samples(|n| 40_000 - n * 200, |_| 400)).is_ok(), "shrinking is fine");
}

#[test]
fn a_short_run_says_nothing() {
    let few: Vec<_> = samples(|_| 1, |_| 1).into_iter().take(5).collect();
    assert!(flat(&few).is_err());
}

#[test]
fn resident_size_is_read() {
    assert_eq!(rss_kib("VmPeak:\t 10 kB\nVmRSS:\t   1234 kB\nThreads:\t2\n"), Some(1_234));
    assert_eq!(rss_kib("Threads:\t2\n"), None);
}
