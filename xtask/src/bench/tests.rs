use super::counts::has_grown;
use super::fit::{Quartiles, quartiles, ratios};
use super::peers::parse_cores;
use super::report::{self, Results, Settings};
use super::svg;
use serde_json::json;

#[test]
fn quartiles_are_interpolated() {
    for (values, expected) in [
        (vec![], None),
        (vec![2.0], Some((2.0, 2.0, 2.0))),
        (vec![4.0, 1.0, 3.0, 2.0], Some((1.75, 2.5, 3.25))),
        (vec![5.0, 1.0, 3.0, 2.0, 4.0], Some((2.0, 3.0, 4.0))),
        (vec![1.0, f64::NAN], Some((1.0, 1.0, 1.0))),
    ] {
        let expected = expected.map(|(low, median, high)| Quartiles { low, median, high });
        assert_eq!(quartiles(values.clone()), expected, "{values:?}");
    }
}

#[test]
fn ratios_are_paired_by_round() {
    let own = [(0, 2.0), (1, 30.0), (2, 5.0)];
    let other = [(1, 10.0), (0, 1.0)];
    assert_eq!(ratios(&own, &other).map(|q| q.median), Some(2.5));
    assert_eq!(ratios(&own, &[]), None);
}

#[test]
fn core_lists() {
    for (list, cores) in [("\t0-1\n", vec![0, 1]), ("3", vec![3]), ("0,4-6", vec![0, 4, 5, 6]), ("", vec![])]
    {
        assert_eq!(parse_cores(list), cores, "{list:?}");
    }
}

#[test]
fn growth_beyond_five_percent_fails() {
    assert!(!has_grown(1000, 1050));
    assert!(has_grown(1000, 1051));
    assert!(!has_grown(1000, 10));
}

fn results() -> Results {
    let about = ["nginx", "HAProxy", "llmgw epoll"].map(|name| (name.to_owned(), "1.0".to_owned())).to_vec();
    let (left_out, machine) = (vec!["io_uring is forbidden".to_owned()], "a machine".to_owned());
    let settings =
        Settings { rounds: 2, slice_ms: 100, gateway_core: 0, load_core: 1, about, left_out, machine };
    let row = |measure: &str, round: u64, target: &str, cpu: u64, units: u64| {
        json!({"measure": measure, "round": round, "target": target, "cpu_ns": cpu, "units": units,
               "wall_ns": 1_000_000_000u64, "p50_ns": 1000, "p99_ns": 5000, "failures": 0, "failure": null})
    };
    let mut rows = vec![json!({"settings": "paced", "rate": 12000.0})];
    for round in 0..2 {
        rows.push(row("saturated", round, "direct", 0, 90_000));
        rows.push(row("saturated", round, "nginx", 40_000_000 * (round + 1), 40_000));
        rows.push(row("saturated", round, "HAProxy", 40_000_000, 40_000));
        rows.push(row("saturated", round, "llmgw epoll", 30_000_000 * (round + 1), 60_000));
    }
    Results::new(settings, &rows)
}

#[test]
fn a_report_holds_values_ratios_and_what_is_missing() {
    let text = report::text(&results());
    for expected in [
        "| requests/s, 64 connections | 90000 | 40000 | 40000 | 60000 |",
        "| CPU us a request, saturated | - | 1.5 | 1.0 | 0.8 |",
        "| ... to nginx | - | - | 0.75 (0.62-0.88) | 0.50 |",
        "Direct ceiling: 1.50 times the fastest gateway (at least 1.3): enough.",
        "Left out: io_uring is forbidden",
        "Fixed rate: 12000 requests/s.",
    ] {
        assert!(text.contains(expected), "{expected} in:\n{text}");
    }
    let told = report::json(&results());
    assert_eq!(told["gateways"]["llmgw epoll"]["request_us"]["to_nginx"]["median"], json!(0.5));
    assert_eq!(told["gateways"]["nginx"]["request_us"]["slices"], json!([1.0, 2.0]));
}

#[test]
fn a_chart_has_a_bar_for_each_gateway() {
    let drawn = svg::draw(&results());
    assert_eq!(drawn.matches("<rect").count(), 3 + 3);
    assert!(drawn.ends_with("</svg>\n"));
}
