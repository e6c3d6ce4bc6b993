use crate::fixture::{config, fleet};
use std::sync::Arc;

#[tokio::test]
async fn an_address_that_its_name_no_longer_has_is_replaced() {
    let (fleet, shared) = fleet(config(
        "endpoints: [{ id: named, model: m, url: 'http://localhost:1' }, \
         { id: fixed, model: m, url: 'http://10.0.0.1:1' }]",
    ));
    let first = shared.snapshot.load_full();
    assert_eq!(first.endpoints[0].address.to_string(), "10.9.9.9:1");
    assert!(fleet.look_up().await.unwrap());
    let second = shared.snapshot.load_full();
    assert!(second.endpoints[0].address.ip().is_loopback());
    assert!(Arc::ptr_eq(&first.endpoints[1], &second.endpoints[1]));
    assert!(!fleet.look_up().await.unwrap(), "nothing is published for no change");
    assert_eq!(shared.snapshot.load().version, 2);
}
