//! Request targets and authorities, by RFC 3986's grammar.
//!
//! Beyond the grammar, what browsers leave unencoded passes: `[ ] |` in paths, and also `{ } \ ^` and the backtick in
//! queries. A path with a backslash is refused, for some servers read it as a slash. A host is made of letters,
//! digits, `- . _ ~` and percent-encoded bytes, or is an IPv6 address in brackets.

use super::head::bytes_of;
use super::request::Method;
use memchr::{memchr, memrchr};
use std::net::Ipv6Addr;

/// A parsed request target.
#[derive(Debug)]
pub(super) struct Target<'b> {
    pub path: &'b str,
    pub query: Option<&'b str>,
    /// Of an absolute target.
    pub authority: Option<&'b str>,
    /// The scheme's port, for an absolute target.
    pub default_port: &'static str,
}

/// `None` if the target is malformed or not of a form that the method allows.
pub(super) fn parse_target(target: &str, method: Method) -> Option<Target<'_>> {
    if target == "*" {
        let asterisk = Target { path: target, query: None, authority: None, default_port: "" };
        return (method == Method::Options).then_some(asterisk);
    }
    let (authority, default_port, rest) =
        if target.starts_with('/') { (None, "", target) } else { split_absolute(target)? };
    let (path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (rest, None),
    };
    if !check_encoded(path, &PATH) || !query.is_none_or(|q| check_encoded(q, &QUERY)) {
        return None;
    }
    let path = match path {
        "" if method == Method::Options && query.is_none() => "*", // RFC 9112, 3.2.4
        "" => "/",
        path => path,
    };
    Some(Target { path, query, authority, default_port })
}

/// Authority, its scheme's port, and path with query of an absolute `http` or `https` target.
fn split_absolute(target: &str) -> Option<(Option<&str>, &'static str, &str)> {
    let (scheme, rest) = target.split_once("://")?;
    let default_port = if scheme.eq_ignore_ascii_case("http") {
        "80"
    } else if scheme.eq_ignore_ascii_case("https") {
        "443"
    } else {
        return None;
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    check_host(authority).then_some((Some(authority), default_port, rest))
}

/// `true` if `host` is `name`, `1.2.3.4` or `[v6]`, with an optional port; never with user information.
pub(super) fn check_host(host: &str) -> bool {
    let (name, port) = split_port(host);
    let port_valid = port.is_none_or(|p| {
        // The grammar allows an empty port; digits beyond 65535 name no port.
        p.is_empty() || (p.len() <= 5 && p.bytes().all(|b| b.is_ascii_digit()) && p.parse::<u16>().is_ok())
    });
    let name_valid = match name.strip_prefix('[') {
        Some(v6) => v6.strip_suffix(']').is_some_and(|a| a.parse::<Ipv6Addr>().is_ok()),
        None => !name.is_empty() && check_encoded(name, &UNRESERVED),
    };
    port_valid && name_valid
}

/// Same host (any case) and port, where a missing or empty port is the scheme's own.
pub(super) fn same_authority(a: &str, b: &str, default_port: &str) -> bool {
    let (a_name, a_port) = split_port(a);
    let (b_name, b_port) = split_port(b);
    fn given(port: Option<&str>) -> Option<&str> {
        port.filter(|p| !p.is_empty())
    }
    a_name.eq_ignore_ascii_case(b_name)
        && given(a_port).unwrap_or(default_port) == given(b_port).unwrap_or(default_port)
}

/// Splits `:port` off, minding the colons inside brackets.
fn split_port(host: &str) -> (&str, Option<&str>) {
    let name_end = memrchr(b']', host.as_bytes()).map_or(0, |at| at + 1);
    match memchr(b':', &host.as_bytes()[name_end..]) {
        Some(at) => (&host[..name_end + at], Some(&host[name_end + at + 1..])),
        None => (host, None),
    }
}

/// `true` if every byte is `allowed` or part of a percent-encoded one.
fn check_encoded(text: &str, allowed: &[bool; 256]) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if allowed[usize::from(byte)] {
            continue;
        }
        let mut hex = || bytes.next().is_some_and(|b| b.is_ascii_hexdigit());
        if byte != b'%' || !hex() || !hex() {
            return false;
        }
    }
    true
}

static UNRESERVED: [bool; 256] = bytes_of(b"-._~");
static PATH: [bool; 256] = bytes_of(b"-._~/:@!$&'()*+,;=[]|");
static QUERY: [bool; 256] = bytes_of(b"-._~/:@!$&'()*+,;=[]|?{}\\^`");
