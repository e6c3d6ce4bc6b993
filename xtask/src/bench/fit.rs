//! Small statistics: medians and quartiles, of values and of paired ratios.

/// First quartile, median, third quartile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quartiles {
    /// A quarter lies below.
    pub low: f64,
    /// Half lies below.
    pub median: f64,
    /// Three quarters lie below.
    pub high: f64,
}

/// Quartiles of some values, interpolated; none of no values.
pub fn quartiles(values: impl IntoIterator<Item = f64>) -> Option<Quartiles> {
    let mut sorted: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
    if sorted.is_empty() {
        return None;
    }
    sorted.sort_by(f64::total_cmp);
    let at = |quarters: usize| {
        let place = (sorted.len() - 1) * quarters;
        let (whole, part) = (place / 4, f64::from(u8::try_from(place % 4).unwrap_or(0)) / 4.0);
        let next = sorted[(whole + 1).min(sorted.len() - 1)];
        sorted[whole] + (next - sorted[whole]) * part
    };
    Some(Quartiles { low: at(1), median: at(2), high: at(3) })
}

/// Ratios of values of the same round. A round that one of them lacks is left out.
pub fn ratios(own: &[(u64, f64)], other: &[(u64, f64)]) -> Option<Quartiles> {
    let pair = |(round, value): &(u64, f64)| {
        let (_, by) = other.iter().find(|(r, _)| r == round)?;
        Some(value / by)
    };
    quartiles(own.iter().filter_map(pair))
}
