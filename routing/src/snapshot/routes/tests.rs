use super::*;
use proptest::prelude::*;

fn route(model: &str) -> RouteSpec {
    RouteSpec { model: model.into(), ..RouteSpec::default() }
}

fn backends(list: &[(&str, f64)]) -> Vec<BackendSpec> {
    list.iter()
        .map(|(served, weight)| BackendSpec { served_model: (*served).into(), weight: *weight })
        .collect()
}

fn cascade(list: &[(&str, Option<&str>)]) -> Vec<StepSpec> {
    let step = |(model, rule): &(&str, Option<&str>)| StepSpec {
        model: (*model).into(),
        accept_if: rule.map(str::to_owned),
    };
    list.iter().map(step).collect()
}

fn table(specs: Vec<RouteSpec>) -> RouteTable {
    RouteTable::new(specs.into()).expect("a valid table")
}

fn params(specs: &[RouteSpec]) -> Vec<String> {
    validate(specs).err().unwrap_or_default().into_iter().map(|problem| problem.param).collect()
}

#[test]
fn a_good_table_passes() {
    let split = RouteSpec {
        aliases: vec!["default".into(), "org/smol".into()],
        targets: vec!["unified".into()],
        backends: backends(&[("smol-v3", 0.9), ("smol-v4", 0.1), ("smol-v5", 0.0)]),
        priority: Some(-3),
        ..route("smol")
    };
    let stepped = RouteSpec {
        targets: vec!["unified".into(), "disaggregated".into()],
        cascade: cascade(&[
            ("small", Some("mean_logprob > -1.2")),
            ("mid", Some("min_logprob <= 3")),
            ("big", None),
        ]),
        ..route("smart")
    };
    // Ten tenths are not one as doubles.
    let tenths: Vec<(String, f64)> = (0..10).map(|i| (format!("m{i}"), 0.1)).collect();
    let tenths: Vec<(&str, f64)> = tenths.iter().map(|(name, weight)| (name.as_str(), *weight)).collect();
    let many = RouteSpec { backends: backends(&tenths), ..route("many") };
    assert_eq!(validate(&[split, stepped, many, route("plain")]), Ok(()));
    assert_eq!(validate(&[]), Ok(()));
}

#[test]
fn problems_name_their_field() {
    let with_backends = |list: &[(&str, f64)]| RouteSpec { backends: backends(list), ..route("a") };
    let with_steps = |list: &[(&str, Option<&str>)]| RouteSpec { cascade: cascade(list), ..route("a") };
    let rule = Some("mean_logprob > -1");
    let cases: Vec<(Vec<RouteSpec>, &[&str])> = vec![
        (vec![route("a"), route("a")], &["routes[1].model"]),
        (
            vec![route("a"), RouteSpec { aliases: vec!["b".into(), "a".into()], ..route("c") }],
            &["routes[1].aliases[1]"],
        ),
        (vec![RouteSpec { aliases: vec!["a".into()], ..route("a") }], &["routes[0].aliases[0]"]),
        (vec![RouteSpec { aliases: vec!["b".into()], ..route("a") }, route("b")], &["routes[1].model"]),
        (vec![route("")], &["routes[0].model"]),
        (vec![route(" a")], &["routes[0].model"]),
        (vec![route("a\n")], &["routes[0].model"]),
        (vec![route("é")], &["routes[0].model"]),
        (vec![route(&"x".repeat(NAME_MAX))], &[]),
        (vec![route(&"x".repeat(NAME_MAX + 1))], &["routes[0].model"]),
        (vec![RouteSpec { targets: vec!["unify".into()], ..route("a") }], &["routes[0].targets[0]"]),
        (
            vec![RouteSpec { targets: vec!["unified".into(), "unified".into()], ..route("a") }],
            &["routes[0].targets[1]"],
        ),
        (vec![with_backends(&[("x", 0.5)])], &["routes[0].backends"]),
        (vec![with_backends(&[("x", 0.5), ("y", 0.5 + 2e-9)])], &["routes[0].backends"]),
        (vec![with_backends(&[("x", 0.5), ("y", 0.5 + 0.5e-9)])], &[]),
        (
            vec![with_backends(&[("x", 1.5), ("y", -0.5)])],
            &["routes[0].backends[0].weight", "routes[0].backends[1].weight"],
        ),
        (vec![with_backends(&[("x", f64::NAN)])], &["routes[0].backends[0].weight"]),
        (vec![with_backends(&[("x", 0.5), ("x", 0.5)])], &["routes[0].backends[1].served_model"]),
        (vec![with_backends(&[("", 1.0)])], &["routes[0].backends[0].served_model"]),
        (vec![with_steps(&[("x", None)])], &["routes[0].cascade"]),
        (vec![with_steps(&[("x", rule), ("y", rule)])], &["routes[0].cascade[1].accept_if"]),
        (vec![with_steps(&[("x", None), ("y", None)])], &["routes[0].cascade[0].accept_if"]),
        (vec![with_steps(&[("x", Some("mean > 1")), ("y", None)])], &["routes[0].cascade[0].accept_if"]),
        (vec![with_steps(&[("x", rule), ("\t", None)])], &["routes[0].cascade[1].model"]),
        (
            vec![RouteSpec { backends: backends(&[("x", 1.0)]), ..with_steps(&[("x", rule), ("y", None)]) }],
            &["routes[0].cascade"],
        ),
        (
            vec![RouteSpec { aliases: (0..=LIST_MAX).map(|i| format!("n{i}")).collect(), ..route("a") }],
            &["routes[0].aliases"],
        ),
        (vec![RouteSpec { aliases: (0..LIST_MAX).map(|i| format!("n{i}")).collect(), ..route("a") }], &[]),
        (vec![route("a"); ROUTES_MAX + 1], &["routes"]),
    ];
    for (number, (specs, expected)) in cases.iter().enumerate() {
        assert_eq!(params(specs), *expected, "case {number}");
    }
    let messages = validate(&[route("a"), route("a")]).expect_err("twice");
    let expected = "routes[1].model: `a` is already the model or an alias of a route (routes[0].model)";
    assert_eq!(messages[0].to_string(), expected);
    assert!(validate(&vec![RouteSpec::default(); ROUTES_MAX]).is_err_and(|all| all.len() == ROUTES_MAX));
}

#[test]
fn parse_accept_if() {
    use Comparison::{Above, AtLeast, AtMost, Below};
    let parsed = |metric, op, bound| Ok(AcceptIf { metric, op, bound });
    assert_eq!("mean_logprob > -1.2".parse(), parsed(Metric::MeanLogprob, Above, -1.2));
    assert_eq!("min_logprob >= 0".parse(), parsed(Metric::MinLogprob, AtLeast, 0.0));
    assert_eq!(" min_logprob  <  1e-3 ".parse(), parsed(Metric::MinLogprob, Below, 1e-3));
    assert_eq!("mean_logprob <= -3".parse(), parsed(Metric::MeanLogprob, AtMost, -3.0));
    for wrong in [
        "",
        "mean_logprob",
        "mean_logprob >",
        "mean_logprob > ",
        "mean_logprob > x",
        "mean_logprob > NaN",
        "mean_logprob > inf",
        "mean_logprob = 1",
        "mean_logprob => 1",
        "max_logprob > 1",
        "mean_logprob>1",
        "mean_logprob > 1 2",
        "> 1 mean_logprob",
        "Mean_logprob > 1",
    ] {
        assert!(wrong.parse::<AcceptIf>().is_err(), "{wrong}");
    }
}

#[test]
fn names_and_aliases_lead_to_their_route() {
    let spec = RouteSpec { aliases: vec!["b".into(), "org/b".into()], priority: Some(4), ..route("a") };
    let table = table(vec![spec, route("c")]);
    for name in ["a", "b", "org/b"] {
        let found = table.get(name).expect("a route");
        assert_eq!((&*found.name, found.priority), ("a", Some(4)), "{name}");
    }
    assert_eq!(table.get("c").map(|found| found.priority), Some(None));
    assert!(table.get("d").is_none() && RouteTable::default().get("a").is_none());
    let mut names: Vec<&str> = table.names().collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "c", "org/b"]);
}

/// A tenth of the ids go to the canary, within four standard deviations; one id always to the same backend; a route
/// without backends leads to its own model.
#[test]
fn canary_split() {
    let spec = RouteSpec { backends: backends(&[("v3", 0.9), ("v4", 0.1)]), ..route("smol") };
    let table = table(vec![spec, route("plain")]);
    let smol = table.get("smol").expect("a route");
    let canary = (0..10_000).filter(|i| &**smol.backend(&format!("req-{i}")) == "v4").count();
    let deviation = (10_000.0_f64 * 0.1 * 0.9).sqrt();
    assert!((canary as f64 - 1000.0).abs() < 4.0 * deviation, "{canary}");
    for id in ["", "a", "req-17"] {
        assert!((0..10).all(|_| smol.backend(id) == smol.backend(id)));
    }
    let plain = table.get("plain").expect("a route");
    assert_eq!(&**plain.backend("x"), "plain");
}

/// Weights cumulate in listed order: the draw falls into the first whose sum lies above it.
#[test]
fn the_draw_is_the_top_of_the_hash() {
    assert_eq!(draw("").to_bits(), ((hash64(b"") >> 11) as f64 / 9_007_199_254_740_992.0).to_bits());
    let weights = [("a", 0.25), ("zero", 0.0), ("b", 0.25), ("c", 0.5), ("last", 0.0)];
    let table = table(vec![RouteSpec { backends: backends(&weights), ..route("m") }]);
    let found = table.get("m").expect("a route");
    for i in 0..2000 {
        let id = format!("r{i}");
        let expected = match draw(&id) {
            u if u < 0.25 => "a",
            u if u < 0.5 => "b",
            _ => "c",
        };
        assert_eq!(&**found.backend(&id), expected);
    }
    let served: Vec<&str> = found.served_models().map(|served| &**served).collect();
    assert_eq!(served, ["a", "zero", "b", "c", "last"]);
}

/// Until cascades are served, a request takes the last step, as a stream always will.
#[test]
fn a_cascade_leads_to_its_last_step() {
    let rule = Some("mean_logprob > -1");
    let table =
        table(vec![RouteSpec { cascade: cascade(&[("small", rule), ("big", None)]), ..route("smart") }]);
    assert_eq!(&**table.get("smart").expect("a route").backend("r"), "big");
    assert_eq!(table.specs[0].served_models().collect::<Vec<_>>(), ["small", "big"]);
}

#[test]
fn every_served_model_is_told() {
    let split = RouteSpec { backends: backends(&[("v3", 1.0), ("v4", 0.0)]), ..route("smol") };
    assert_eq!(split.served_models().collect::<Vec<_>>(), ["v3", "v4"]);
    assert_eq!(route("plain").served_models().collect::<Vec<_>>(), ["plain"]);
}

proptest! {
    /// Whatever the weights, no backend of weight 0 is drawn, and the shares are the weights.
    #[test]
    fn shares_are_weights(weights in prop::collection::vec(0u32..5, 1..6), salt in any::<u32>()) {
        let sum: u32 = weights.iter().sum();
        prop_assume!(sum > 0);
        let list: Vec<BackendSpec> = weights.iter().enumerate().map(|(i, weight)| BackendSpec {
            served_model: format!("m{i}"),
            weight: f64::from(*weight) / f64::from(sum),
        }).collect();
        let table = RouteTable::new([RouteSpec { backends: list, ..route("r") }].into());
        let table = table.expect("weights that sum to 1");
        let found = table.get("r").expect("a route");
        let mut counts = vec![0u32; weights.len()];
        for i in 0..2000 {
            let served = found.backend(&format!("{salt}-{i}"));
            counts[served[1..].parse::<usize>().expect("a number")] += 1;
        }
        for (count, weight) in counts.iter().zip(&weights) {
            let share = f64::from(*weight) / f64::from(sum);
            let deviation = (2000.0 * share * (1.0 - share)).sqrt();
            prop_assert!((f64::from(*count) - 2000.0 * share).abs() <= 5.0 * deviation + 1.0);
        }
    }
}
