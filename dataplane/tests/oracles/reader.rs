//! A reader of event streams, written from the HTML standard's text: plain, whole input, slow.

use crate::Event;

/// The events that the stream dispatches; an incomplete last one is discarded.
pub fn events(stream: &[u8]) -> Vec<Event> {
    let text = String::from_utf8_lossy(stream).into_owned();
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let (mut events, mut name, mut data) = (Vec::new(), String::new(), String::new());
    for line in lines(text) {
        if line.is_empty() {
            if let Some(data) = data.strip_suffix('\n') {
                let name = if name.is_empty() { "message" } else { &name };
                events.push((name.to_owned(), data.to_owned()));
            }
            name.clear();
            data.clear();
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut name),
            "data" => {
                data.push_str(value);
                data.push('\n');
            }
            _ => {}
        }
    }
    events
}

/// Lines that are ended, by CRLF, LF or CR.
fn lines(mut text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    while let Some(at) = text.find(['\r', '\n']) {
        lines.push(&text[..at]);
        let end = if text[at..].starts_with("\r\n") { 2 } else { 1 };
        text = &text[at + end..];
    }
    lines
}
