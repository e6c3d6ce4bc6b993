use super::{Quota, Spares};
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn quota_never_exceeds_its_limit_and_returns_to_zero() {
    let total = AtomicUsize::new(0);
    let limit = 1 << 20;
    let mut shards = [Quota::default(), Quota::default()];
    let mut held: Vec<(usize, usize)> = Vec::new();
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        if rng.bool() || held.is_empty() {
            let (shard, bytes) = (rng.usize(0..2), rng.usize(1..200_000));
            if shards[shard].take(&total, limit, bytes) {
                held.push((shard, bytes));
            }
        } else {
            let (shard, bytes) = held.swap_remove(rng.usize(0..held.len()));
            shards[shard].give(&total, bytes);
        }
        let sum: usize = held.iter().map(|(_, bytes)| bytes).sum();
        assert!(sum <= total.load(Ordering::Relaxed) && total.load(Ordering::Relaxed) <= limit);
        assert_eq!(sum, shards[0].held() + shards[1].held());
    }
    for (shard, bytes) in held {
        shards[shard].give(&total, bytes);
    }
    shards.iter_mut().for_each(|quota| quota.surrender(&total));
    assert_eq!(total.load(Ordering::Relaxed), 0);
}

#[test]
fn the_last_bytes_of_the_limit_are_usable() {
    let total = AtomicUsize::new(0);
    let mut quota = Quota::default();
    assert!(quota.take(&total, 1000, 1000));
    assert!(!quota.take(&total, 1000, 1));
}

#[test]
fn spares_are_warm_empty_and_bounded() {
    let mut spares = Spares::default();
    let mut buffer = spares.take();
    buffer.extend_from_slice(b"secret");
    let place = buffer.as_ptr();
    spares.give(buffer);
    let again = spares.take();
    assert!(again.is_empty());
    assert_eq!(again.as_ptr(), place, "the last one given is lent first");
    // Neither a large one nor too many are kept.
    spares.give(Vec::with_capacity(1 << 20));
    assert!(spares.take().capacity() < 1 << 20);
    let many: Vec<Vec<u8>> = (0..200).map(|_| spares.take()).collect();
    many.into_iter().for_each(|buffer| spares.give(buffer));
    assert!(spares.held() <= 64);
}
