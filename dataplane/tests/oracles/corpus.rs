//! Event streams: the grammar of the HTML standard's section on server-sent events by hand, and what engines and their
//! imitators send, each with every kind of line end.

/// A stream.
pub struct Case {
    pub name: String,
    pub input: Vec<u8>,
    /// The gateway asked for the usage report, so it withholds it.
    pub withhold: bool,
    /// Readers that are known to see something else, with the reason in the table.
    pub differs: &'static [&'static str],
}

const ROLE: &str = r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
const TOKEN: &str = r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"é😀"},"finish_reason":null}]}"#;
const TRAP: &str = r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"data: [DONE]\n\n\"usage\":{},\"choices\":[]"},"finish_reason":null}]}"#;
const LAST: &str = r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const USAGE: &str = r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#;
const USAGE_WITH_CHOICE: &str = r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"x"}}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#;
const USAGE_NULL: &str =
    r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":null}"#;
const ESCAPED_USAGE: &str = r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","ch\u006fices":[],"us\u0061ge":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#;
const ERROR: &str =
    r#"data: {"error":{"message":"out of memory","type":"server_error","param":null,"code":null}}"#;
const DONE: &str = "data: [DONE]";

/// Streams of lines, told with LF: name, stream, withhold. Each is tried with LF, CRLF and CR ends.
const LINES: &[(&str, &[&str], bool)] = &[
    ("empty", &[], false),
    ("one event", &["data: a", ""], false),
    ("two events", &["data: a", "", "data: b", ""], false),
    ("data on several lines", &["data: a", "data: b", "data", "data: c", ""], false),
    ("no space", &["data:a", "data:b", ""], false),
    ("one space of two is kept", &["data:  a", ""], false),
    ("a tab is not a space", &["data:\ta", ""], false),
    ("empty data", &["data:", ""], false),
    ("empty data with a space", &["data: ", ""], false),
    ("data without a colon", &["data", ""], false),
    ("two empty data lines", &["data", "data", ""], false),
    ("a space before the colon", &["data : a", "", "data: b", ""], false),
    ("a space before the field", &[" data: a", "", "data: b", ""], false),
    ("upper case is another field", &["DATA: a", "", "data: b", ""], false),
    ("a longer name is another field", &["datas: a", "", "data: b", ""], false),
    ("a colon in the value", &["data: a: b:", ""], false),
    ("names", &["event: x", "data: a", "", "data: b", ""], false),
    ("name after data", &["data: a", "event: x", ""], false),
    ("last name counts", &["event: x", "event: y", "data: a", ""], false),
    ("a name without data", &["event: x", "", "data: a", ""], false),
    ("empty name", &["event:", "data: a", ""], false),
    ("comment", &[": hello", "", "data: a", ""], false),
    ("comment inside of an event", &["data: a", ": hello", "data: b", ""], false),
    ("comment of nothing", &[":", "", "data: a", ""], false),
    ("comment that looks like data", &[":data: [DONE]", "", "data: a", ""], false),
    ("unknown field", &["x: y", "data: a", ""], false),
    ("unknown field alone", &["x: y", "", "data: a", ""], false),
    ("line without a colon", &["hello", "data: a", ""], false),
    ("blank lines first", &["", "", "data: a", ""], false),
    ("blank lines between", &["data: a", "", "", "", "data: b", ""], false),
    ("incomplete", &["data: a", "", "data: b"], false),
    ("incomplete comment", &["data: a", "", ": b"], false),
    ("unicode", &["data: äöü €😀 \u{200b}\u{2028}\u{85}\u{c}", ""], false),
    ("long", &["data: 0123456789012345678901234567890123456789012345678901234567890123456789", ""], false),
    ("json on several lines", &["data: {\"a\":", "data: 1}", ""], false),
    ("terminator", &["data: a", "", DONE, ""], false),
    ("terminator without a space", &["data: a", "", "data:[DONE]", ""], false),
    ("terminator with a name", &["event: done", DONE, ""], false),
    ("terminator with a comment", &[": bye", DONE, ""], false),
    ("terminator in two lines is none", &["data: [DONE", "data: ]", "", "data: a", ""], false),
    ("terminator with more lines is none", &[DONE, "data: a", "", "data: b", ""], false),
    ("terminator with two spaces is none", &["data:  [DONE]", "", "data: b", ""], false),
    ("lower case terminator is none", &["data: [done]", "", "data: b", ""], false),
    ("quoted terminator is none", &["data: \"[DONE]\"", "", "data: b", ""], false),
    ("behind the terminator", &[DONE, "", "data: late", ""], false),
    ("terminator twice", &[DONE, "", DONE, ""], false),
    ("incomplete terminator", &["data: a", "", DONE], false),
    ("chat", &[ROLE, "", TOKEN, "", LAST, "", DONE, ""], false),
    ("chat that speaks of streams", &[ROLE, "", TRAP, "", LAST, "", DONE, ""], true),
    ("chat with usage asked for", &[ROLE, "", TOKEN, "", LAST, "", USAGE, "", DONE, ""], false),
    ("chat with usage withheld", &[ROLE, "", TOKEN, "", LAST, "", USAGE, "", DONE, ""], true),
    ("usage first", &[USAGE, "", TOKEN, "", DONE, ""], true),
    ("usage twice", &[USAGE, "", TOKEN, "", USAGE, "", DONE, ""], true),
    ("usage beside a choice", &[TOKEN, "", USAGE_WITH_CHOICE, "", DONE, ""], true),
    ("usage null", &[TOKEN, "", USAGE_NULL, "", DONE, ""], true),
    ("usage under escaped keys", &[TOKEN, "", ESCAPED_USAGE, "", DONE, ""], true),
    ("usage with a comment before it", &[TOKEN, "", ": ping", USAGE, "", DONE, ""], true),
    ("usage without a terminator", &[TOKEN, "", USAGE, ""], true),
    ("error", &[ROLE, "", ERROR, "", DONE, ""], false),
    ("error at once", &[ERROR, "", DONE, ""], false),
    ("error without a terminator", &[TOKEN, "", ERROR, ""], true),
    ("pings", &[": ping", "", ROLE, "", ": ping", "", TOKEN, "", ": ping", "", DONE, ""], true),
];

const PYTHON: &[&str] = &["httpx-sse", "openai decoder", "anthropic decoder"];

/// Streams whose line ends, or bytes, matter.
const BYTES: &[(&str, &[u8], &[&str])] = &[
    ("mixed ends", b"data: a\r\ndata: b\rdata: c\n\r\ndata: d\n\n", &[]),
    ("CR then CRLF", b"data: a\r\r\ndata: b\n\n", &[]),
    ("CRLF then CR", b"data: a\r\n\rdata: b\n\n", &[]),
    ("LF then CR", b"data: a\n\rdata: b\n\n", &[]),
    ("CR at the end", b"data: a\r\n\r", &[]),
    ("CR CR LF LF", b"data: a\r\r\n\ndata: b\r\n\r\n", &[]),
    // The Python decoders leave a byte order mark where it is, and so miss the first line. The gateway removes it.
    ("byte order mark", b"\xef\xbb\xbfdata: a\n\ndata: b\n\n", PYTHON),
    ("byte order mark and terminator", b"\xef\xbb\xbfdata: [DONE]\n\n", PYTHON),
    ("byte order mark later", b"data: a\n\n\xef\xbb\xbfdata: [DONE]\n\ndata: b\n\n", &[]),
    ("two byte order marks", b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n", PYTHON),
    ("half a byte order mark", b"\xef\xbbdata: a\n\ndata: b\n\n", &[]),
    ("NUL", b"data: a\0b\n\ndata: b\n\n", &[]),
    // Once a stream has named an id, the Python decoders take every blank line for an event, also a comment's.
    ("id", b"id: 1\ndata: a\n\ndata: b\n\n", PYTHON),
    ("retry", b"retry: 5\ndata: a\n\ndata: b\n\n", &[]),
    ("id and retry", b"id: 1\ndata: a\n\nretry: 5\ndata: b\n\nid\ndata: c\n\n", PYTHON),
    ("not UTF-8", b"data: \xff\xfe\n\ndata: b\n\n", &[]),
    ("a character cut by an event", b"data: \xf0\x9f\n\ndata: \x98\x80\n\n", &[]),
];

/// All of them.
pub fn corpus() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, lines, withhold) in LINES {
        let complete = lines.last().is_none_or(|line| line.is_empty());
        for (kind, end) in [("LF", "\n"), ("CRLF", "\r\n"), ("CR", "\r")] {
            let mut input = lines.join(end);
            if complete && !lines.is_empty() {
                input.push_str(end);
            }
            cases.push(Case {
                name: format!("{name}, {kind}"),
                input: input.into_bytes(),
                withhold: *withhold,
                differs: &[],
            });
        }
    }
    for (name, input, differs) in BYTES {
        cases.push(Case { name: (*name).to_owned(), input: input.to_vec(), withhold: false, differs });
    }
    cases
}
