//! Fields that decide framing and the connection's life, read strictly in one pass.

use super::head::{HeadError, Headers, is_token, trim_ows};
use smallvec::SmallVec;

/// Most names a message may list in `Connection`.
const MAX_CONNECTION_NAMES: usize = 32;

/// Field names listed in `Connection`, which therefore end at this hop. `close` and `keep-alive` are not kept.
#[derive(Debug, Clone, Default)]
pub struct ConnectionNamed<'b> {
    names: SmallVec<[&'b str; 2]>,
}

impl ConnectionNamed<'_> {
    /// `true` if `name` (any case) was listed.
    pub fn contains(&self, name: &str) -> bool {
        self.names.iter().any(|n| n.eq_ignore_ascii_case(name))
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Nothing but `close` or `keep-alive` was listed.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

/// Framing and connection options of a message.
#[derive(Debug, Default)]
pub(super) struct Fields<'b> {
    pub content_length: Option<u64>,
    pub chunked: bool,
    pub close: bool,
    pub keep_alive: bool,
    /// `Content-Type` occurs more than once.
    pub repeated_content_type: bool,
    pub connection: ConnectionNamed<'b>,
    /// The last `Host`, and whether there is another.
    pub host: Option<&'b [u8]>,
    pub repeated_host: bool,
    /// There is an expectation, and one other than `100-continue`.
    pub expect: bool,
    pub other_expect: bool,
}

impl<'b> Fields<'b> {
    /// Reads the fields of a message of HTTP/1.1 (`http11`) or HTTP/1.0.
    pub(super) fn read(headers: &Headers<'b>, http11: bool) -> Result<Self, HeadError> {
        let mut fields = Fields::default();
        let mut content_type = false;
        for field in headers.fields() {
            let (name, value) = (field.name, field.value);
            match name.len() {
                4 if name.eq_ignore_ascii_case(b"host") => {
                    fields.repeated_host |= fields.host.replace(value).is_some();
                }
                6 if name.eq_ignore_ascii_case(b"expect") => {
                    fields.expect = true;
                    fields.other_expect |= !value.eq_ignore_ascii_case(b"100-continue");
                }
                10 if name.eq_ignore_ascii_case(b"connection") => fields.read_connection(value)?,
                12 if name.eq_ignore_ascii_case(b"content-type") => {
                    fields.repeated_content_type |= content_type;
                    content_type = true;
                }
                14 if name.eq_ignore_ascii_case(b"content-length") => {
                    if fields.content_length.is_some() {
                        return Err(HeadError::RepeatedContentLength);
                    }
                    fields.content_length = Some(parse_length(value)?);
                }
                17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                    if fields.chunked {
                        return Err(HeadError::TransferEncoding);
                    }
                    check_transfer_encoding(value)?;
                    fields.chunked = true;
                }
                _ => {}
            }
        }
        if fields.chunked && !http11 {
            return Err(HeadError::TransferEncodingVersion);
        }
        if fields.chunked && fields.content_length.is_some() {
            return Err(HeadError::LengthAndTransferEncoding);
        }
        Ok(fields)
    }

    /// Whether the connection may carry another message after this one.
    pub(super) fn persistent(&self, http11: bool) -> bool {
        !self.close && (http11 || self.keep_alive)
    }

    fn read_connection(&mut self, value: &'b [u8]) -> Result<(), HeadError> {
        for item in value.split(|&b| b == b',') {
            let item = trim_ows(item);
            if item.is_empty() {
                continue; // empty list elements are legal (RFC 9110, 5.6.1)
            }
            let name = std::str::from_utf8(item).map_err(|_| HeadError::Connection)?;
            if !is_token(item) || self.connection.len() == MAX_CONNECTION_NAMES {
                return Err(HeadError::Connection);
            }
            if name.eq_ignore_ascii_case("close") {
                self.close = true;
            } else if name.eq_ignore_ascii_case("keep-alive") {
                self.keep_alive = true;
            } else {
                self.connection.names.push(name);
            }
        }
        Ok(())
    }
}

/// One decimal number: no sign, no list, no leading zero (read as octal by some), no overflow.
fn parse_length(value: &[u8]) -> Result<u64, HeadError> {
    if value.is_empty() || (value.len() > 1 && value[0] == b'0') {
        return Err(HeadError::ContentLength);
    }
    value.iter().try_fold(0u64, |sum, &byte| {
        if !byte.is_ascii_digit() {
            return Err(HeadError::ContentLength);
        }
        let digit = u64::from(byte - b'0');
        sum.checked_mul(10).and_then(|s| s.checked_add(digit)).ok_or(HeadError::ContentLength)
    })
}

/// Accepts `chunked`. A well-formed list that ends in its only `chunked` is understood but not implemented.
fn check_transfer_encoding(value: &[u8]) -> Result<(), HeadError> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let mut codings = value.rsplit(|&b| b == b',').map(trim_ows);
    let chunked_last = codings.next().is_some_and(|last| last.eq_ignore_ascii_case(b"chunked"));
    let others_named = codings.all(|c| {
        let known: [&[u8]; 5] = [b"gzip", b"x-gzip", b"deflate", b"compress", b"x-compress"];
        known.iter().any(|k| c.eq_ignore_ascii_case(k))
    });
    if chunked_last && others_named {
        Err(HeadError::UnsupportedCoding)
    } else {
        Err(HeadError::TransferEncoding)
    }
}
