//! What the slices of a side-by-side run say: a table, and JSON with every slice's value.

use super::fit::{Quartiles, quartiles, ratios};
use super::gateways::FLOOR;
use serde_json::{Value, json};
use std::fmt::Write;

/// The engines alone, without a gateway.
pub const DIRECT: &str = "direct";
/// Those that ratios are taken to.
pub const PEERS: [&str; 2] = ["nginx", "HAProxy"];
/// The direct ceiling must be this much above the fastest gateway, or the load is what was measured.
const CEILING_MIN: f64 = 1.3;

/// How a run was made.
pub struct Settings {
    /// Slices of each gateway and measure.
    pub rounds: usize,
    /// Milliseconds.
    pub slice_ms: u64,
    /// Where the gateways ran.
    pub gateway_core: usize,
    /// Where engines and load ran.
    pub load_core: usize,
    /// Name and version of each gateway, in the order of the tables.
    pub about: Vec<(String, String)>,
    /// What could not be started, and why.
    pub left_out: Vec<String>,
    /// Processor and kernel.
    pub machine: String,
}

/// What one figure is.
pub struct Figure {
    /// Title with unit.
    pub title: &'static str,
    /// Name in JSON.
    pub key: &'static str,
    /// Ratios to the peers mean something.
    pub compared: bool,
    /// Less is better.
    pub less: bool,
    measure: &'static str,
    value: fn(&Value) -> f64,
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or(f64::NAN)
}
fn cpu_us(row: &Value) -> f64 {
    number(row, "cpu_ns") / 1e3 / number(row, "units")
}
fn a_second(row: &Value) -> f64 {
    number(row, "units") * 1e9 / number(row, "wall_ns")
}

/// All figures, in the order of the tables.
pub const FIGURES: &[Figure] = &[
    figure("requests/s, 64 connections", "requests_per_s", "saturated", a_second, false, true),
    figure("CPU us a request, saturated", "request_us", "saturated", cpu_us, true, true),
    figure("CPU us a request, fixed rate", "request_paced_us", "paced", cpu_us, true, true),
    figure("CPU us an event, 200 streams", "event_200_us", "events_200", cpu_us, true, true),
    figure("CPU us an event, 40 streams", "event_40_us", "events_40", cpu_us, true, true),
    figure("CPU us a MB, 1 MB answers", "mb_us", "large", cpu_us, true, true),
    figure("KiB an idle stream", "idle_kib", "idle", idle_kib, true, true),
    figure(
        "p50 us at a third of saturation",
        "p50_us",
        "third",
        |row| number(row, "p50_ns") / 1e3,
        true,
        false,
    ),
    figure(
        "p99 us at a third of saturation",
        "p99_us",
        "third",
        |row| number(row, "p99_ns") / 1e3,
        true,
        false,
    ),
];

const fn figure(
    title: &'static str,
    key: &'static str,
    measure: &'static str,
    value: fn(&Value) -> f64,
    less: bool,
    compared: bool,
) -> Figure {
    Figure { title, key, compared, less, measure, value }
}

fn idle_kib(row: &Value) -> f64 {
    (number(row, "kib") - number(row, "before_kib")) / number(row, "streams")
}

/// All that was measured.
pub struct Results {
    /// How.
    pub settings: Settings,
    /// Gateways and [`DIRECT`], in the order of the tables.
    pub names: Vec<String>,
    /// Requests a second of the two paced measures.
    pub rates: Vec<(String, f64)>,
    /// Things that went wrong, with the first reason.
    pub failures: Vec<String>,
    rows: Vec<Value>,
}

impl Results {
    /// Sorts what the load said.
    pub fn new(settings: Settings, rows: &[Value]) -> Self {
        let names = std::iter::once(DIRECT.to_owned());
        let names = names.chain(settings.about.iter().map(|(name, _)| name.clone())).collect();
        let rates =
            rows.iter().filter_map(|row| Some((row["settings"].as_str()?.to_owned(), number(row, "rate"))));
        let failed = rows.iter().filter(|row| row["failures"].as_u64().unwrap_or(0) > 0);
        let failures = failed.map(|row| {
            let text = |key: &str| row[key].as_str().unwrap_or("?").to_owned();
            format!("{}, {}: {} times {}", text("target"), text("measure"), row["failures"], text("failure"))
        });
        Results { names, rates: rates.collect(), failures: failures.collect(), rows: rows.to_vec(), settings }
    }

    /// A figure's values of a gateway, by round.
    pub fn values(&self, figure: &Figure, name: &str) -> Vec<(u64, f64)> {
        let of = |row: &&Value| row["measure"] == figure.measure && row["target"] == name;
        // The memory measure has one round.
        let rows = self.rows.iter().filter(of).filter(|_| name != DIRECT || figure.measure != "idle");
        rows.map(|row| (row["round"].as_u64().unwrap_or(0), (figure.value)(row)))
            .filter(|(_, value)| value.is_finite())
            .collect()
    }

    /// Median and quartiles of a figure.
    pub fn quartiles(&self, figure: &Figure, name: &str) -> Option<Quartiles> {
        // The engines' own CPU time is not measured.
        if name == DIRECT && figure.title.starts_with("CPU") {
            return None;
        }
        quartiles(self.values(figure, name).into_iter().map(|(_, value)| value))
    }

    /// Ratio to a peer within rounds.
    pub fn ratio(&self, figure: &Figure, name: &str, peer: &str) -> Option<Quartiles> {
        let skip = !figure.compared || name == DIRECT || name == peer;
        if skip { None } else { ratios(&self.values(figure, name), &self.values(figure, peer)) }
    }

    /// What a gateway adds to a latency, within rounds, in microseconds.
    fn added(&self, figure: &Figure, name: &str) -> Option<Quartiles> {
        let direct = self.values(figure, DIRECT);
        let added = self.values(figure, name).into_iter().filter_map(|(round, value)| {
            let (_, base) = direct.iter().find(|(r, _)| *r == round)?;
            Some(value - base)
        });
        quartiles(added.collect::<Vec<_>>())
    }

    /// Requests a second of the engines alone, over those of the fastest gateway.
    pub fn ceiling(&self) -> Option<f64> {
        let of = |name: &str| Some(self.quartiles(&FIGURES[0], name)?.median);
        let gateways = self.settings.about.iter().filter(|(name, _)| name != FLOOR);
        let fastest = gateways.filter_map(|(name, _)| of(name)).fold(0.0, f64::max);
        Some(of(DIRECT)? / fastest)
    }
}

/// For the terminal, and for pasting into a page.
pub fn text(results: &Results) -> String {
    let mut out = String::from("\n");
    // Writing to a string does not fail.
    let _ = table(&mut out, results).and_then(|()| notes(&mut out, results));
    out
}

fn table(out: &mut String, results: &Results) -> std::fmt::Result {
    writeln!(out, "| | {} |", results.names.join(" | "))?;
    writeln!(out, "|---|{}", "---|".repeat(results.names.len()))?;
    for figure in FIGURES {
        write!(out, "| {} |", figure.title)?;
        for name in &results.names {
            write!(out, " {} |", results.quartiles(figure, name).map_or("-".to_owned(), plain))?;
        }
        writeln!(out)?;
        for peer in PEERS.iter().filter(|_| figure.compared) {
            write!(out, "| ... to {peer} |")?;
            for name in &results.names {
                let own = results.quartiles(figure, name).and(results.ratio(figure, name, peer));
                write!(out, " {} |", own.map_or("-".to_owned(), spread))?;
            }
            writeln!(out)?;
        }
        if figure.title.starts_with('p') {
            write!(out, "| ... added |")?;
            for name in &results.names {
                let added = if name == DIRECT { None } else { results.added(figure, name) };
                write!(out, " {} |", added.map_or("-".to_owned(), range))?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

fn digits(value: f64) -> usize {
    if value.abs() >= 200.0 { 0 } else { 1 }
}

fn plain(q: Quartiles) -> String {
    format!("{:.*}", digits(q.median), q.median)
}

fn range(q: Quartiles) -> String {
    format!("{:.0} ({:.0}-{:.0})", q.median, q.low, q.high)
}

fn spread(q: Quartiles) -> String {
    if q.low == q.high {
        return format!("{:.2}", q.median);
    }
    format!("{:.2} ({:.2}-{:.2})", q.median, q.low, q.high)
}

fn notes(out: &mut String, results: &Results) -> std::fmt::Result {
    let s = &results.settings;
    writeln!(
        out,
        "\nMedians of {} slices of {} ms in random order; ratios are paired within a round, with quartiles. Gateways \
         on core {}, engines and load on core {}. {}.",
        s.rounds, s.slice_ms, s.gateway_core, s.load_core, s.machine
    )?;
    let versions: Vec<String> = s.about.iter().map(|(name, version)| format!("{name}: {version}")).collect();
    writeln!(
        out,
        "{}. llmgw with usage capture, metrics, access log to a file, pipeline.",
        versions.join("; ")
    )?;
    for (name, rate) in &results.rates {
        let what = if name == "paced" { "Fixed rate" } else { "A third of the slowest gateway's saturation" };
        writeln!(out, "{what}: {rate:.0} requests/s.")?;
    }
    if let Some(ceiling) = results.ceiling() {
        let verdict = if ceiling < CEILING_MIN {
            "TOO LOW: the load, not the gateways, was measured"
        } else {
            "enough"
        };
        writeln!(
            out,
            "Direct ceiling: {ceiling:.2} times the fastest gateway (at least {CEILING_MIN}): {verdict}."
        )?;
    }
    for why in &s.left_out {
        writeln!(out, "Left out: {why}")?;
    }
    for failure in &results.failures {
        writeln!(out, "Failed: {failure}")?;
    }
    Ok(())
}

/// Everything, every slice's value included.
pub fn json(results: &Results) -> Value {
    let s = &results.settings;
    let three = |q: Quartiles| json!({"low": q.low, "median": q.median, "high": q.high});
    let mut gateways = serde_json::Map::new();
    for name in &results.names {
        let mut figures = serde_json::Map::new();
        for figure in FIGURES {
            let Some(q) = results.quartiles(figure, name) else { continue };
            let mut told = three(q);
            for peer in PEERS {
                if let Some(ratio) = results.ratio(figure, name, peer) {
                    told[format!("to_{}", peer.to_lowercase())] = three(ratio);
                }
            }
            if let Some(added) = results.added(figure, name).filter(|_| figure.title.starts_with('p')) {
                told["added"] = three(added);
            }
            let values: Vec<f64> = results.values(figure, name).into_iter().map(|(_, value)| value).collect();
            told["slices"] = json!(values);
            figures.insert(figure.key.to_owned(), told);
        }
        gateways.insert(name.clone(), Value::Object(figures));
    }
    let rates: serde_json::Map<String, Value> =
        results.rates.iter().map(|(name, rate)| (name.clone(), json!(rate))).collect();
    let versions: serde_json::Map<String, Value> =
        s.about.iter().map(|(name, version)| (name.clone(), json!(version))).collect();
    json!({
        "settings": {
            "rounds": s.rounds, "slice_ms": s.slice_ms, "gateway_core": s.gateway_core, "load_core": s.load_core,
            "machine": s.machine, "versions": versions, "rates": rates, "left_out": s.left_out,
        },
        "ceiling": results.ceiling(), "failures": results.failures, "gateways": gateways,
    })
}
