//! What the fuzz targets share.

pub mod oracle;

/// Takes the first two bytes as a recipe for splitting the rest: the rest, and ascending cuts within it.
pub fn split_recipe(input: &[u8]) -> Option<(&[u8], Vec<usize>)> {
    let (&[seed, step], rest) = input.split_first_chunk::<2>()?;
    let mut state = u32::from(seed) << 8 | u32::from(step) | 1;
    let mut cuts = Vec::new();
    let mut at = 0;
    loop {
        // Any cheap sequence does: the fuzzer changes the seed.
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        at += (state >> 16) as usize % (usize::from(step) + 2);
        if at >= rest.len() {
            return Some((rest, cuts));
        }
        cuts.push(at);
    }
}

/// A cut before every byte but the first.
pub fn every_byte(input: &[u8]) -> Vec<usize> {
    (1..input.len()).collect()
}

/// Ranges between `cuts`, the last one up to `len`.
pub fn ranges(cuts: &[usize], len: usize) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    let mut from = 0;
    cuts.iter().copied().chain([len]).map(move |cut| {
        let range = from..cut;
        from = cut;
        range
    })
}
