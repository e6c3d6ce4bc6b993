use super::*;

/// Rules found in one file, in order.
fn found(path: &str, text: &str) -> Vec<&'static str> {
    check(&[File::new(path, text)]).iter().filter(|f| f.rule != "dead-file").map(|f| f.rule).collect()
}

fn with_doc(code: &str) -> String {
    format!("//! A module.\n{code}\n")
}

#[test]
fn each_rule_finds_its_fault_and_nothing_else() {
    let long = format!("// {}", "x".repeat(118));
    let table: &[(&str, &str, &[&str])] = &[
        ("a/src/x.rs", "fn f() {}", &[]),
        ("a/src/x.rs", &long, &["line-length"]),
        ("a/src/x.rs", "fn f() {} ", &["trailing-space"]),
        ("a/src/x.rs", "fn f() {\tg() }", &["tab"]),
        ("a/src/x.rs", "fn f() { dbg!(1); }", &["banned-call"]),
        ("a/src/x.rs", "fn f() { todo!() }", &["banned-call"]),
        ("a/src/x.rs", "fn f() { unimplemented!() }", &["banned-call"]),
        ("a/src/x.rs", "fn f() { my_dbg!(1); } // todo!", &[]),
        ("a/src/x.rs", "const S: &str = \"todo!()\";", &[]),
        ("a/src/x.rs", concat!("// FIX", "ME: later"), &["mark"]),
        ("a/src/x.rs", "// /tmp/XXXXXX is a template", &[]),
        ("a/src/x.rs", concat!("const P: &str = \"/wo", "rk/x\";"), &["machine-path"]),
        ("a/src/x.rs", concat!("// https://example.com/ho", "me/x and var/ro", "ot/y"), &[]),
        ("a/src/x.rs", "fn f() { std::thread::sleep(d); }", &[]),
        ("a/tests/x.rs", "fn f() { std::thread::sleep(d); }", &["sleep"]),
        ("a/src/y/tests.rs", "fn f() { tokio::time::sleep(d).await; }", &["sleep"]),
        ("a/tests/x.rs", "// tidy: allow(sleep) polls a real socket\nfn f() { std::thread::sleep(d); }", &[]),
        ("a/src/x.rs", "fn f() { unsafe { g() } }", &["unsafe-place", "safety-comment"]),
        ("dataplane/src/driver/x.rs", "fn f() { unsafe { g() } }", &["safety-comment"]),
        ("dataplane/src/driver/x.rs", "// SAFETY: g has no conditions.\nunsafe impl Send for X {}", &[]),
        ("a/src/x.rs", "#![forbid(unsafe_code)] // no unsafe here", &[]),
    ];
    for (path, code, expect) in table {
        assert_eq!(found(path, &with_doc(code)), *expect, "{path}: {code}");
    }
}

#[test]
fn a_module_opens_with_its_purpose() {
    assert_eq!(found("a/src/x.rs", "fn f() {}\n"), ["module-doc"]);
    assert_eq!(found("a/src/x.rs", "#![no_main]\n\n//! What it is for.\n"), Vec::<&str>::new());
    assert_eq!(found("a/src/tests.rs", "use super::*;\n"), Vec::<&str>::new());
}

#[test]
fn the_last_line_ends() {
    assert_eq!(found("a/src/x.rs", "//! A module."), ["final-newline"]);
}

#[test]
fn markdown_tables_and_links_may_be_long() {
    let wide = "x".repeat(130);
    assert_eq!(found("docs/a.md", &format!("{wide}\n")), ["line-length"]);
    assert_eq!(found("docs/a.md", &format!("| {wide} |\n")), Vec::<&str>::new());
    assert_eq!(found("docs/a.md", &format!("[{wide}](https://example.com)\n")), Vec::<&str>::new());
}

#[test]
fn a_test_s_input_may_be_long() {
    let row = format!("const INPUT: &str = \"{}\";", "x".repeat(130));
    assert_eq!(found("a/src/x.rs", &with_doc(&row)), ["line-length"]);
    assert_eq!(found("a/src/x/tests.rs", &with_doc(&row)), Vec::<&str>::new());
    assert_eq!(found("a/src/x/tests.rs", &with_doc(&"x".repeat(130))), ["line-length"]);
}

#[test]
fn long_files_warn_and_then_fail() {
    let lines = |n: usize| with_doc(&"const _: () = ();\n".repeat(n));
    assert_eq!(found("a/src/x.rs", &lines(500)), Vec::<&str>::new());
    let warned = check(&[File::new("src/main.rs", &lines(700))]);
    assert_eq!(
        warned.iter().map(|f| (f.rule, f.level)).collect::<Vec<_>>(),
        [("file-length", Level::Warning)]
    );
    let failed = check(&[File::new("src/main.rs", &lines(800))]);
    assert_eq!(failed.iter().map(|f| (f.rule, f.level)).collect::<Vec<_>>(), [("file-length", Level::Error)]);
}

#[test]
fn long_functions_are_found_by_their_braces() {
    let body = "    g();\n".repeat(99);
    assert_eq!(found("a/src/x.rs", &with_doc(&format!("fn f() {{\n{body}}}"))), ["function-length"]);
    let body = "    g();\n".repeat(98);
    assert_eq!(found("a/src/x.rs", &with_doc(&format!("fn f() {{\n{body}}}"))), Vec::<&str>::new());
}

#[test]
fn functions_end_where_their_bodies_do() {
    let source =
        "trait T { fn a(&self) -> [u8; 4]; }\nfn b(f: fn(u8)) {\n  let s = \"}\"; // }\n  let c = '{';\n}\n";
    let names: Vec<_> =
        lexer::functions(&lexer::mask(source)).into_iter().map(|f| (f.name, f.first, f.last)).collect();
    assert_eq!(names, [("b".to_owned(), 2, 5)]);
}

#[test]
fn the_mask_keeps_code_and_places() {
    let table = [
        ("a // b\nc", "a     \nc"),
        ("a /* b /* c */ d */ e", "a                   e"),
        ("x(\"a\\\"b\") y", "x(      ) y"),
        ("r#\"a\"b\"# c", "         c"),
        ("br\"a\" c", "      c"),
        ("for r in r#fn", "for r in r#fn"),
        ("'a' 'static '\\'' b'x' z", "    'static           z"),
        ("b\"x\" b", "     b"),
    ];
    for (source, expect) in table {
        assert_eq!(lexer::mask(source), expect, "{source}");
    }
}

#[test]
fn dead_files_are_those_nobody_names() {
    let files = [
        File::new("a/src/lib.rs", "//! L.\nmod used;\n#[cfg(test)]\nmod tests;\n// mod dead;\n"),
        File::new("a/src/used.rs", "//! U.\nmod inner;\n"),
        File::new("a/src/used/inner.rs", "//! I.\n"),
        File::new("a/src/dead.rs", "//! D.\n"),
        File::new("a/src/tests.rs", "\n"),
        File::new("a/tests/e2e.rs", "//! E.\nmod common;\n"),
        File::new("a/tests/common/mod.rs", "//! C.\n"),
        File::new("a/odd/start.rs", "//! S.\n"),
        File::new("a/Cargo.toml", "[[bin]]\npath = \"odd/start.rs\"\n"),
    ];
    let dead: Vec<_> = check(&files).into_iter().map(|f| (f.rule, f.path)).collect();
    assert_eq!(dead, [("dead-file", "a/src/dead.rs".to_owned())]);
}

#[test]
fn links_point_at_files_of_the_tree() {
    let text = "[a](b.md) [c](../README.md#top) [d](gone.md) [e](https://x.y/z) [f](#here) [g](../../up.md)\n\
                ```\n[h](not-a-link.md)\n```\n";
    let files =
        [File::new("docs/a.md", text), File::new("docs/b.md", "b\n"), File::new("README.md", "[d](docs)\n")];
    let wrong: Vec<_> = check(&files).into_iter().map(|f| f.message).collect();
    assert_eq!(wrong, ["gone.md points nowhere", "../../up.md leaves the repository"]);
}

#[test]
fn the_specification_names_tests_that_exist() {
    let page = "| limit | answer | test |\n|---|---|---|\n| body | 413 `x` | `a_test`, `x::gone` |\n| head | `431` | |\n\n\
                | figure | checked by |\n|---|---|\n| p99 | `cargo xtask bench` |\n| none | |\n";
    let files =
        [File::new("docs/specification.md", page), File::new("tests/e2e.rs", "//! E.\nfn a_test() {}\n")];
    let found: Vec<_> = check(&files).into_iter().map(|f| (f.level, f.line, f.message)).collect();
    let expect = [
        (Level::Error, 3, "no test is called x::gone".to_owned()),
        (Level::Warning, 4, "no test holds us to this".to_owned()),
    ];
    assert_eq!(found, expect);
}
