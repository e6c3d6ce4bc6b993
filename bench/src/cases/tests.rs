//! What a shard allocates in steady state: nothing.

use super::{Call, shard};

/// Allocations of a hundred calls, after enough of them to have filled every pool.
fn allocations(mut call: Call) -> u64 {
    (0..300).for_each(|_| call());
    allocation_counter::measure(|| (0..100).for_each(|_| call())).count_total
}

#[test]
fn a_request_in_steady_state_allocates_nothing() {
    assert_eq!(allocations(shard::request_json()), 0);
}

/// But for what each stream remembers of its events, for as long as it lasts.
#[test]
fn a_streamed_request_in_steady_state_allocates_its_memory_of_events() {
    assert_eq!(allocations(shard::request_stream()), 100);
}

#[test]
fn an_event_in_steady_state_allocates_nothing() {
    assert_eq!(allocations(shard::relay_event()), 0);
}
