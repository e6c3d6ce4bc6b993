use super::*;
use crate::MILLISECOND;
use proptest::prelude::*;

fn withdraw_all(budget: &RetryBudget, now: Nanos) -> u64 {
    (0..10_000).take_while(|_| budget.try_withdraw(now)).count() as u64
}

#[test]
fn without_requests_the_floor_is_three_a_second() {
    let budget = RetryBudget::new(0.2);
    assert_eq!(withdraw_all(&budget, 0), FLOOR_PER_SECOND);
    assert_eq!(withdraw_all(&budget, 300 * MILLISECOND), 0);
    assert_eq!(withdraw_all(&budget, 334 * MILLISECOND), 1);
    assert_eq!(withdraw_all(&budget, 100 * SECOND), FLOOR_PER_SECOND, "the floor does not add up");
}

#[test]
fn requests_earn_their_share() {
    let budget = RetryBudget::new(0.2);
    (0..50).for_each(|_| budget.record_request());
    // Ten from savings; the first three of them use up the floor as well.
    assert_eq!(withdraw_all(&budget, 0), 10);
}

#[test]
fn savings_are_bounded() {
    let budget = RetryBudget::new(0.5);
    (0..100_000).for_each(|_| budget.record_request());
    assert_eq!(withdraw_all(&budget, 0), SAVINGS_MAX);
}

#[test]
fn strange_ratios() {
    for (ratio, allowed) in [(0.0, 3), (-1.0, 3), (f64::NAN, 3), (1.0, 10), (7.0, 10)] {
        let budget = RetryBudget::new(ratio);
        (0..10).for_each(|_| budget.record_request());
        assert_eq!(withdraw_all(&budget, 0), allowed, "ratio {ratio}");
    }
}

#[test]
fn the_ratio_can_change() {
    let budget = RetryBudget::new(0.0);
    budget.set_ratio(1.0);
    (0..20).for_each(|_| budget.record_request());
    assert_eq!(withdraw_all(&budget, 0), 20);
}

proptest! {
    /// Over any run, retries stay within the larger of share and floor, but for the savings and the floor's burst; and
    /// a retry is never refused to someone who had fewer than three in the last second.
    #[test]
    fn bounded_from_both_sides(
        ratio in 0.0..1.0f64,
        steps in prop::collection::vec((0u64..50, 0u64..20, 0u64..40 * MILLISECOND), 1..200),
    ) {
        let budget = RetryBudget::new(ratio);
        let (mut now, mut requests) = (0, 0u64);
        let mut granted: Vec<Nanos> = Vec::new();
        for (sent, retries, pause) in steps {
            now += pause;
            requests += sent;
            (0..sent).for_each(|_| budget.record_request());
            for _ in 0..retries {
                let recent = granted.iter().filter(|at| **at + SECOND > now).count() as u64;
                if budget.try_withdraw(now) {
                    granted.push(now);
                } else {
                    prop_assert!(recent >= FLOOR_PER_SECOND - 1, "refused after {recent} in the last second");
                }
            }
        }
        let share = ratio * requests as f64 + 1.0;
        let floor = now as f64 / FLOOR_STEP as f64 + FLOOR_PER_SECOND as f64;
        prop_assert!(granted.len() as f64 <= share + floor);
    }
}
