use super::{World, pass};
use crate::fixture::{addresses, config};
use crate::publisher::Publisher;
use llmgw_dataplane::shared::Shared;
use llmgw_routing::budget::RetryBudget;
use std::sync::{Arc, Mutex};

#[tokio::test]
async fn an_address_that_its_name_no_longer_has_is_replaced() {
    let config = config(
        "endpoints: [{ id: named, model: m, url: 'http://localhost:1' }, \
         { id: fixed, model: m, url: 'http://10.0.0.1:1' }]",
    );
    let mut publisher = Publisher::new(1);
    let first = publisher.build(&config, &addresses(&config), 0).unwrap();
    assert_eq!(first.endpoints[0].address.to_string(), "10.9.9.9:1");
    let shared =
        Shared::<()>::new(Arc::clone(&first), Arc::clone(publisher.loads()), RetryBudget::new(0.2), 1);
    let world = Mutex::new(World { publisher, config });
    assert!(pass(&world, &shared).await.unwrap());
    let second = shared.snapshot.load_full();
    assert!(second.endpoints[0].address.ip().is_loopback());
    assert!(Arc::ptr_eq(&first.endpoints[1], &second.endpoints[1]));
    assert!(!pass(&world, &shared).await.unwrap(), "nothing is published for no change");
    assert_eq!(shared.snapshot.load().version, 2);
}
