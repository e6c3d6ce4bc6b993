//! Heads seen before. A client sends the same head with each request, and an engine with each answer, but for a few
//! values: those are cut out, and the rest is compared instead of parsed.
//!
//! **Invariants**
//!
//! * What is remembered of a head is a function of its bytes without the values cut out. A head matches if it has the
//!   same bytes between them, and values of a plain form at their places, of which the parser would say nothing else;
//!   whatever is not plain is parsed.
//! * A memo is small and bounded: heads in number and size, and tries per connection by [`Place`].

use super::Headers;
use smallvec::SmallVec;

/// Heads remembered.
const HEADS_MAX: usize = 32;
/// Bytes of the longest head that is remembered.
const HEAD_BYTES_MAX: usize = 2048;
/// Values cut out of one head.
const VALUES_MAX: usize = 8;
/// Heads of one connection that are put in without any ever being met again.
const TRIES: u8 = 4;

/// A value that varies from head to head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Varying {
    /// `Content-Length`: plain digits.
    Length,
    /// A value that nothing depends on: secrets of clients, which never pass; ids of answers, which are ours.
    Ignored,
    /// `X-Request-Id` of a request.
    RequestId,
    /// A value that passes on; the name as it goes out.
    Passing(&'static str),
}

/// What varies in requests, by lower-case name.
pub const REQUEST: &[(&str, Varying)] = &[
    ("content-length", Varying::Length),
    ("authorization", Varying::Ignored),
    ("x-api-key", Varying::Ignored),
    ("x-request-id", Varying::RequestId),
    ("traceparent", Varying::Passing("traceparent")),
    ("tracestate", Varying::Passing("tracestate")),
];
/// What varies in answers.
pub const RESPONSE: &[(&str, Varying)] = &[
    ("content-length", Varying::Length),
    ("date", Varying::Passing("date")),
    ("x-request-id", Varying::Ignored),
];

/// Where a connection's last head is in a memo, and how often that was in vain.
#[derive(Debug, Clone, Copy, Default)]
pub struct Place {
    at: u8,
    tries: u8,
}

impl Place {
    /// Its heads never come twice: they are not looked for any more.
    fn hopeless(self) -> bool {
        self.tries >= TRIES
    }
}

struct Remembered<F> {
    bytes: Box<[u8]>,
    /// Start and end of each value in `bytes`, in order.
    values: SmallVec<[(u16, u16, Varying); 4]>,
    facts: F,
}

/// Values of a head that matched, in the order in which they stand.
pub type Values<'b> = SmallVec<[(Varying, &'b [u8]); 4]>;

/// A head that matched.
pub struct Hit<'m, 'b, F> {
    /// What was remembered.
    pub facts: &'m F,
    /// Bytes of the head.
    pub end: usize,
    /// Its values.
    pub values: Values<'b>,
}

impl<F> Hit<'_, '_, F> {
    /// `Content-Length` in bytes.
    pub fn length(&self) -> Option<u64> {
        let (_, digits) = self.values.iter().find(|(varying, _)| *varying == Varying::Length)?;
        Some(digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
    }
}

/// See the module.
pub struct Memo<F> {
    heads: Vec<Remembered<F>>,
    /// Replaced next.
    next: usize,
}

impl<F> Default for Memo<F> {
    fn default() -> Self {
        Memo { heads: Vec::new(), next: 0 }
    }
}

impl<F> Memo<F> {
    /// Looks for a head at the start of `buf`, first where the connection's last one was.
    pub fn find<'b>(&self, place: &mut Place, buf: &'b [u8]) -> Option<Hit<'_, 'b, F>> {
        if place.hopeless() {
            return None;
        }
        let last = usize::from(place.at);
        let others = (0..self.heads.len()).filter(|at| *at != last);
        for at in std::iter::once(last).chain(others) {
            let Some(head) = self.heads.get(at) else { continue };
            if let Some((end, values)) = head.matches(buf) {
                *place = Place { at: u8::try_from(at).unwrap_or(0), tries: 0 };
                return Some(Hit { facts: &head.facts, end, values });
            }
        }
        None
    }

    /// Remembers `facts` of a head that was parsed into `headers`. `varying` names the values to cut out.
    pub fn put(
        &mut self,
        place: &mut Place,
        head: &[u8],
        headers: &Headers<'_>,
        varying: &[(&str, Varying)],
        facts: F,
    ) {
        if place.hopeless() || head.len() > HEAD_BYTES_MAX {
            return;
        }
        place.tries += 1;
        let Some(values) = cut(head, headers, varying) else { return };
        let remembered = Remembered { bytes: head.into(), values, facts };
        let at = self.next;
        self.next = (at + 1) % HEADS_MAX;
        place.at = u8::try_from(at).unwrap_or(0);
        if at < self.heads.len() {
            self.heads[at] = remembered;
        } else {
            self.heads.push(remembered);
        }
    }

    /// Forgets all: what was remembered depends on settings that have changed.
    pub fn clear(&mut self) {
        *self = Memo::default();
    }
}

/// Where the values lie that vary. `None` if there are too many of them, or if one counts that occurs more than once:
/// which of them does is for the parser to say.
fn cut(
    head: &[u8],
    headers: &Headers<'_>,
    varying: &[(&str, Varying)],
) -> Option<SmallVec<[(u16, u16, Varying); 4]>> {
    let mut values = SmallVec::new();
    let mut met: SmallVec<[Varying; 8]> = SmallVec::new();
    for (name, value) in headers.iter() {
        let kind =
            varying.iter().find(|(varies, _)| name.eq_ignore_ascii_case(varies)).map(|(_, kind)| *kind);
        let Some(kind) = kind else { continue };
        if kind != Varying::Ignored && met.contains(&kind) || met.len() == VALUES_MAX {
            return None;
        }
        met.push(kind);
        // What is not plain stays as it is.
        if plain(kind, value) {
            let start = value.as_ptr().addr() - head.as_ptr().addr();
            values.push((u16::try_from(start).ok()?, u16::try_from(start + value.len()).ok()?, kind));
        }
    }
    Some(values)
}

impl<F> Remembered<F> {
    fn matches<'b>(&self, buf: &'b [u8]) -> Option<(usize, Values<'b>)> {
        let (mut at, mut from) = (0, 0);
        let mut found = Values::new();
        for (start, end, varying) in &self.values {
            let piece = &self.bytes[from..usize::from(*start)];
            let rest = buf.get(at..)?.strip_prefix(piece)?;
            at += piece.len();
            let value = &rest[..memchr::memchr(b'\r', rest)?];
            if !plain(*varying, value) {
                return None;
            }
            at += value.len();
            from = usize::from(*end);
            found.push((*varying, value));
        }
        let piece = &self.bytes[from..];
        buf.get(at..)?.starts_with(piece).then_some((at + piece.len(), found))
    }
}

/// Whether the parser would take a value as it stands: nothing to trim, nothing to refuse.
pub fn plain(varying: Varying, value: &[u8]) -> bool {
    match varying {
        // 15 digits cannot overflow; a leading zero is refused.
        Varying::Length => {
            (1..=15).contains(&value.len())
                && value.iter().all(u8::is_ascii_digit)
                && (value[0] != b'0' || value.len() == 1)
        }
        _ => {
            let (Some(first), Some(last)) = (value.first(), value.last()) else { return false };
            first.is_ascii_graphic()
                && last.is_ascii_graphic()
                && value.iter().all(|byte| (b' '..=b'~').contains(byte))
        }
    }
}
