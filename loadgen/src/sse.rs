//! Server-sent events out of any split of the byte stream.
//!
//! Follows the WHATWG algorithm for what matters here: lines end in LF, CRLF or CR, `data` lines join with LF, a blank
//! line ends an event, comments are skipped, an unfinished event at the end is dropped. A line may not exceed
//! [`LINE_MAX`] bytes, so memory is bounded.

/// Longest line kept, in bytes.
pub const LINE_MAX: usize = 4 << 20;

/// One line or event was longer than [`LINE_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Incremental parser of one stream.
#[derive(Debug, Default)]
pub struct SseParser {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was CR: a LF that follows belongs to it.
    after_cr: bool,
    comments: u64,
}

impl SseParser {
    /// Takes bytes as they arrived and hands each complete event's data to `on_event`.
    pub fn feed(&mut self, mut bytes: &[u8], mut on_event: impl FnMut(&[u8])) -> Result<(), TooLong> {
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            if bytes[0] == b'\n' {
                bytes = &bytes[1..];
            }
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) {
            if self.line.is_empty() {
                self.take_line(&bytes[..end], &mut on_event)?;
            } else {
                self.hold(&bytes[..end])?;
                let line = std::mem::take(&mut self.line);
                self.take_line(&line, &mut on_event)?;
                self.line = line;
                self.line.clear();
            }
            let mut next = end + 1;
            if bytes[end] == b'\r' {
                match bytes.get(next) {
                    Some(b'\n') => next += 1,
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            bytes = &bytes[next..];
        }
        self.hold(bytes)
    }

    /// Comment lines seen (keep-alives).
    pub fn comments(&self) -> u64 {
        self.comments
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.line.len() + bytes.len() > LINE_MAX {
            return Err(TooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn take_line(&mut self, line: &[u8], on_event: &mut impl FnMut(&[u8])) -> Result<(), TooLong> {
        if line.is_empty() {
            if self.has_data {
                on_event(&self.data);
                self.data.clear();
                self.has_data = false;
            }
            return Ok(());
        }
        let colon = memchr::memchr(b':', line).unwrap_or(line.len());
        if colon == 0 {
            self.comments += 1;
        } else if &line[..colon] == b"data" {
            let value = line.get(colon + 1..).unwrap_or_default();
            let value = value.strip_prefix(b" ").unwrap_or(value);
            if self.data.len() + value.len() > LINE_MAX {
                return Err(TooLong);
            }
            if self.has_data {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value);
            self.has_data = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
