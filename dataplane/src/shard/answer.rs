//! What an answer's head says, and heads of engines that are known already.

use crate::http1::memo::{self, Values, Varying};
use crate::http1::write::{forward_response_header, put_header};
use crate::http1::{ResponseBody, ResponseHead};

/// What an answer's head says, as an exchange needs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: ResponseBody,
    pub(super) keep_alive: bool,
    pub(super) keep_alive_timeout_s: Option<u64>,
    /// It is an event stream.
    pub(super) streamed: bool,
    /// It is JSON.
    pub(super) json: bool,
    /// It says how it may be cached.
    pub(super) cache_control: bool,
}

impl Answer {
    pub(super) fn of(head: &ResponseHead<'_>) -> Self {
        let content_type = head.headers.get("content-type").unwrap_or_default();
        let is = |kind: &[u8]| {
            content_type.get(..kind.len()).is_some_and(|start| start.eq_ignore_ascii_case(kind))
        };
        Answer {
            status: head.status,
            body: head.body,
            keep_alive: head.keep_alive,
            keep_alive_timeout_s: head.keep_alive_timeout_s,
            streamed: is(b"text/event-stream"),
            json: is(b"application/json"),
            cache_control: head.headers.get("cache-control").is_some(),
        }
    }
}

/// An answer's head, as far as it does not vary; see [`memo`].
pub(super) struct KnownAnswer {
    answer: Answer,
    lines: Box<[u8]>,
}

impl KnownAnswer {
    /// Of a head with nothing out of the ordinary.
    pub(super) fn of(head: &ResponseHead<'_>) -> Option<Self> {
        let odd_date = head.headers.get("date").is_some_and(|date| !memo::plain(Varying::Ignored, date));
        // Whether a length is allowed there is for the parser to say of each.
        let bodiless = head.body == ResponseBody::None || head.status == 205;
        if !(200..300).contains(&head.status) || !head.connection.is_empty() || odd_date || bodiless {
            return None;
        }
        let mut lines = Vec::new();
        for (name, value) in head.headers.iter() {
            if forward_response_header(name) && !name.eq_ignore_ascii_case("date") {
                put_header(&mut lines, name, value);
            }
        }
        Some(KnownAnswer { answer: Answer::of(head), lines: lines.into() })
    }

    /// It, with the length that this one has.
    pub(super) fn answer(&self, length: Option<u64>) -> Answer {
        let body = match (self.answer.body, length) {
            (ResponseBody::Sized(_), Some(bytes)) => ResponseBody::Sized(bytes),
            (body, _) => body,
        };
        Answer { body, ..self.answer }
    }

    /// Appends the engine's lines that go on to the client.
    pub(super) fn put_lines(&self, values: &Values<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.lines);
        for (varying, value) in values {
            if let Varying::Passing(name) = varying {
                put_header(out, name, value);
            }
        }
    }
}
