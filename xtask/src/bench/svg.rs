//! A bar chart of a side-by-side run, for pages in light and in dark.

use super::report::{FIGURES, PEERS, Results};
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 250.0;
const RIGHT: f64 = 130.0;
const BAR: f64 = 13.0;
const GAP: f64 = 14.0;
const TOP: f64 = 54.0;
/// A bar that is longer is cut, and its value says so.
const RATIO_MAX: f64 = 1.6;
const COLOURS: [&str; 5] = ["#2f6fbd", "#49a078", "#b07aa1", "#c9b458", "#7f7f7f"];

/// Draws the figures where less is better, relative to nginx.
pub fn draw(results: &Results) -> String {
    let names: Vec<&String> = results.settings.about.iter().map(|(name, _)| name).collect();
    let figures: Vec<_> = FIGURES.iter().filter(|figure| figure.less && figure.compared).collect();
    let rows = f64::from(u32::try_from(names.len() * figures.len()).unwrap_or(0));
    let groups = f64::from(u32::try_from(figures.len()).unwrap_or(0));
    let height = TOP + rows * BAR + groups * GAP + 30.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"11\" role=\"img\">\n<title>Cost of a gateway relative to nginx</title>\n<style>text{{fill:#333}}\
         .g{{stroke:#999}}@media(prefers-color-scheme:dark){{text{{fill:#ddd}}.g{{stroke:#777}}}}</style>\n\
         <text x=\"10\" y=\"18\" font-size=\"14\">Cost relative to nginx, less is better</text>\n"
    );
    // Writing to a string does not fail.
    let _ = legend(&mut out, &names);
    let scale = (WIDTH - LEFT - RIGHT) / RATIO_MAX;
    let mut y = TOP;
    for figure in figures {
        let middle = y + BAR * f64::from(u32::try_from(names.len()).unwrap_or(0)) / 2.0 + 4.0;
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{middle:.0}\" text-anchor=\"end\">{}</text>",
            LEFT - 10.0,
            figure.title
        );
        for (n, name) in names.iter().enumerate() {
            let ratio = if *name == PEERS[0] {
                Some(1.0)
            } else {
                results.ratio(figure, name, PEERS[0]).map(|ratio| ratio.median)
            };
            if let (Some(ratio), Some(value)) = (ratio, results.quartiles(figure, name)) {
                let _ = writeln!(
                    out,
                    "<rect x=\"{LEFT}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"{}\" fill=\"{}\"/><text x=\"{:.1}\" \
                     y=\"{:.0}\">{ratio:.2} ({:.1})</text>",
                    ratio.clamp(0.0, RATIO_MAX) * scale,
                    BAR - 2.0,
                    COLOURS[n % COLOURS.len()],
                    LEFT + ratio.clamp(0.0, RATIO_MAX) * scale + 5.0,
                    y + BAR - 4.0,
                    value.median
                );
            }
            y += BAR;
        }
        y += GAP;
    }
    let one = LEFT + scale;
    let _ = writeln!(
        out,
        "<line class=\"g\" x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"{}\" y2=\"{:.0}\" stroke-dasharray=\"3 3\"/>\n</svg>",
        TOP - 6.0,
        y
    );
    out
}

fn legend(out: &mut String, names: &[&String]) -> std::fmt::Result {
    let mut x = 10.0;
    for (n, name) in names.iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        writeln!(
            out,
            "<rect x=\"{x:.0}\" y=\"28\" width=\"11\" height=\"11\" fill=\"{colour}\"/><text x=\"{:.0}\" \
             y=\"38\">{name}</text>",
            x + 16.0
        )?;
        x += 40.0 + 7.0 * f64::from(u32::try_from(name.len()).unwrap_or(0));
    }
    Ok(())
}
