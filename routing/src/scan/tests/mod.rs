mod answers;
mod edits;
mod reference;
mod requests;

use super::{Fields, RequestScan, ScanError};

/// Scans `body` in one chunk.
fn scan(body: &[u8]) -> Result<Fields, ScanError> {
    let mut scan = RequestScan::new(64);
    scan.feed(body)?;
    scan.finish(body)
}

/// Scans `body` cut at `cut`.
fn scan_cut(body: &[u8], cut: usize) -> Result<Fields, ScanError> {
    let mut scan = RequestScan::new(64);
    scan.feed(&body[..cut])?;
    scan.feed(&body[cut..])?;
    scan.finish(body)
}

/// Scans `body` byte by byte.
fn scan_bytes(body: &[u8]) -> Result<Fields, ScanError> {
    let mut scan = RequestScan::new(64);
    for byte in body {
        scan.feed(std::slice::from_ref(byte))?;
    }
    scan.finish(body)
}

/// Scans `body` however it may be cut in two, and byte by byte, which must all agree.
fn scan_any_way(body: &[u8]) -> Result<Fields, ScanError> {
    let whole = scan(body);
    assert_eq!(scan_bytes(body), whole, "byte by byte: {}", body.escape_ascii());
    for cut in 0..=body.len() {
        assert_eq!(scan_cut(body, cut), whole, "cut at {cut}: {}", body.escape_ascii());
    }
    whole
}
