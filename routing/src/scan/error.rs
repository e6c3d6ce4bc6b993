//! What is wrong with a request body, and where.

use std::fmt;

/// A complaint about a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanError {
    /// Byte offset into the body; its length for something that is missing at its end.
    pub offset: usize,
    /// What is wrong.
    pub kind: ScanErrorKind,
}

/// What is wrong with a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanErrorKind {
    /// Something else should have come here.
    Expected(&'static str),
    /// The body ended too early.
    Unfinished(&'static str),
    /// A raw control character in a string.
    Control(u8),
    /// Not UTF-8.
    Utf8,
    /// More nesting than this bound.
    Depth(u16),
    /// A field has the wrong type.
    Type {
        /// Field.
        field: &'static str,
        /// Type it must have.
        expected: &'static str,
    },
    /// A field that must be there is not.
    Missing(&'static str),
    /// A field is longer than this bound.
    Length {
        /// Field.
        field: &'static str,
        /// Most bytes.
        max: usize,
    },
    /// A key is repeated more often than this bound.
    Repeated {
        /// Field.
        field: &'static str,
        /// Most occurrences.
        max: usize,
    },
}

impl ScanError {
    pub(super) fn new(offset: usize, kind: ScanErrorKind) -> Self {
        ScanError { offset, kind }
    }

    /// The field at fault, for the error body's `param`.
    pub fn param(&self) -> Option<&'static str> {
        match self.kind {
            ScanErrorKind::Type { field, .. }
            | ScanErrorKind::Missing(field)
            | ScanErrorKind::Length { field, .. }
            | ScanErrorKind::Repeated { field, .. } => Some(field),
            _ => None,
        }
    }
}

impl fmt::Display for ScanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offset = self.offset;
        match self.kind {
            ScanErrorKind::Expected(what) => write!(f, "malformed JSON at byte {offset}: expected {what}"),
            ScanErrorKind::Unfinished(what) => {
                write!(f, "malformed JSON: the body ended at byte {offset} where {what} was expected")
            }
            ScanErrorKind::Control(byte) => write!(
                f,
                "malformed JSON at byte {offset}: control character 0x{byte:02x} in a string must be escaped"
            ),
            ScanErrorKind::Utf8 => write!(f, "malformed JSON at byte {offset}: invalid UTF-8"),
            ScanErrorKind::Depth(max) => {
                write!(f, "JSON at byte {offset} is nested more than {max} levels deep")
            }
            ScanErrorKind::Type { field, expected } => {
                write!(f, "`{field}` at byte {offset} must be {expected}")
            }
            ScanErrorKind::Length { field, max } => {
                write!(f, "`{field}` at byte {offset} is longer than {max} bytes")
            }
            ScanErrorKind::Missing(field) => write!(f, "`{field}` is missing"),
            ScanErrorKind::Repeated { field, max } => {
                write!(f, "`{field}` at byte {offset} is repeated more than {max} times")
            }
        }
    }
}

impl std::error::Error for ScanError {}
