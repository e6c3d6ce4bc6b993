use super::*;

#[test]
fn the_hard_limit_is_the_second_number() {
    let limits = "Limit        Soft Limit   Hard Limit   Units\nMax open files            1024                 524288               files\n";
    assert_eq!(descriptors_max(limits), Some(524_288));
    assert_eq!(descriptors_max("Max open files  1024  unlimited  files"), None);
    assert_eq!(descriptors_max(""), None);
}

#[test]
fn what_is_missing_is_told_with_the_remedy() {
    let step = Step {
        name: "unicorn",
        tests: "",
        check: || Err("no horn".to_owned()),
        apt: &[],
        make: None,
        otherwise: "look for one at dawn",
    };
    assert_eq!(ensure(&step), Err("unicorn: no horn; look for one at dawn".to_owned()));
    assert_eq!(ensure(&Step { check: || Ok(()), ..step }), Ok(()));
}
