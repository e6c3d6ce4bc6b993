use super::*;

#[test]
fn constant_arrivals_do_not_drift() {
    for rate in [1.0, 3.0, 7.0, 1_000.0, 30_000.0] {
        for (index, due) in Schedule::new(Arrivals::Constant, rate, 0, 1, 0).take(100_000).enumerate() {
            let exact = f64::from(u32::try_from(index).expect("small")) / rate;
            assert!((due.as_secs_f64() - exact).abs() < 2e-9, "{index} at {rate}/s: {due:?}");
        }
    }
}

#[test]
fn workers_deal_constant_arrivals_out_between_them() {
    let whole: Vec<_> = Schedule::new(Arrivals::Constant, 900.0, 0, 1, 0).take(99).collect();
    let mut dealt: Vec<_> =
        (0..3).flat_map(|worker| Schedule::new(Arrivals::Constant, 900.0, worker, 3, 0).take(33)).collect();
    dealt.sort();
    assert_eq!(dealt, whole);
}

#[test]
fn poisson_gaps_have_the_mean_and_spread_of_an_exponential() {
    for (workers, seed) in [(1, 1), (1, 2), (4, 3)] {
        let mut previous = Duration::ZERO;
        let gaps: Vec<f64> = Schedule::new(Arrivals::Poisson, 200.0, 0, workers, seed)
            .take(100_000)
            .map(|due| {
                assert!(due >= previous, "due times never decrease");
                let gap = (due - previous).as_secs_f64();
                previous = due;
                gap
            })
            .collect();
        let expected = f64::from(u32::try_from(workers).expect("small")) / 200.0;
        let mean = gaps.iter().sum::<f64>() / 1e5;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / 1e5;
        // Three standard errors are 1% of the mean; of the deviation 2%.
        assert!((mean / expected - 1.0).abs() < 0.015, "mean {mean} instead of {expected}");
        assert!((variance.sqrt() / expected - 1.0).abs() < 0.03, "deviation {}", variance.sqrt());
        let longer = gaps.iter().filter(|gap| **gap > expected).count();
        assert!((36_000..37_600).contains(&longer), "a share of 1/e is longer than the mean, not {longer}");
    }
}

#[test]
fn a_seed_repeats_and_workers_differ() {
    let first =
        |worker, seed| Schedule::new(Arrivals::Poisson, 10.0, worker, 2, seed).take(20).collect::<Vec<_>>();
    assert_eq!(first(0, 5), first(0, 5));
    assert_ne!(first(0, 5), first(1, 5));
    assert_ne!(first(0, 5), first(0, 6));
}
