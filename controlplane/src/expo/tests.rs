use super::{Exposition, Kind};
use proptest::prelude::*;

#[test]
fn a_family_reads_as_the_format_says() {
    let mut out = Exposition::default();
    out.family("a_total", Kind::Counter, "Things.\nAnd \\ more.");
    out.sample("a_total", &[("model", "m"), ("pool", "p")], 3);
    out.single("b", Kind::Gauge, "One.", 0.5);
    assert_eq!(
        out.into_text(),
        "# HELP a_total Things.\\nAnd \\\\ more.\n# TYPE a_total counter\na_total{model=\"m\",pool=\"p\"} 3\n\
         # HELP b One.\n# TYPE b gauge\nb 0.5\n"
    );
}

#[test]
fn a_histogram_is_cumulative_and_ends_in_infinity() {
    let mut out = Exposition::default();
    out.histogram("h", &[("m", "x")], [(0.00025, 1), (0.0005, 3)].into_iter(), 4, 1.5);
    assert_eq!(
        out.into_text(),
        "h_bucket{m=\"x\",le=\"0.00025\"} 1\nh_bucket{m=\"x\",le=\"0.0005\"} 3\nh_bucket{m=\"x\",le=\"+Inf\"} 4\n\
         h_sum{m=\"x\"} 1.5\nh_count{m=\"x\"} 4\n"
    );
}

proptest! {
    #[test]
    fn any_label_value_stays_on_its_line_and_comes_back(value in ".*") {
        let mut out = Exposition::default();
        out.sample("x", &[("l", &value)], 1);
        let text = out.into_text();
        let inner = text.strip_prefix("x{l=\"").and_then(|t| t.strip_suffix("\"} 1\n")).unwrap();
        prop_assert!(!inner.contains('\n'));
        let mut back = String::new();
        let mut chars = inner.chars();
        while let Some(c) = chars.next() {
            match c {
                '\\' => match chars.next() {
                    Some('n') => back.push('\n'),
                    Some(c) => back.push(c),
                    None => return Err(TestCaseError::fail("cut")),
                },
                '"' => return Err(TestCaseError::fail("a bare quote")),
                c => back.push(c),
            }
        }
        prop_assert_eq!(back, value);
    }
}
