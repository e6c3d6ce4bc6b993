use super::*;

const DENY: &str = r#"
[licenses]
allow = [
  "MIT",
  "Apache-2.0", # ours
  # "GPL-3.0",
  "Apache-2.0 WITH LLVM-exception",
]

[bans]
multiple-versions = "allow"
deny = [
  { crate = "ring", reason = "aws-lc-rs is used" },
  { crate = "bincode", reason = "unmaintained" },
]

[sources]
allow-registry = ["x"]
"#;

#[test]
fn expressions_are_met_by_the_allow_list() {
    let table = [
        ("MIT", true),
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("(MIT OR GPL-3.0) AND Apache-2.0", true),
        ("(MIT OR GPL-3.0) AND ISC", false),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
        ("GPL-3.0 WITH LLVM-exception", false),
        ("MIT MIT", false),
        ("(MIT", false),
        ("", false),
    ];
    for (expression, met) in table {
        assert_eq!(satisfied(expression, &allowed(DENY)), met, "{expression}");
    }
}

#[test]
fn deny_toml_is_read() {
    assert_eq!(allowed(DENY), ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]);
    let names: Vec<_> = banned(DENY).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["ring", "bincode"]);
}

#[test]
fn what_is_wrong_names_the_package() {
    let package = |name: &str, license: Option<&str>, own| Package {
        name: name.to_owned(),
        version: "1.0.0".to_owned(),
        license: license.map(str::to_owned),
        own,
        source: None,
    };
    let elsewhere = |name: &str, source: &str| Package {
        source: Some(source.to_owned()),
        ..package(name, Some("MIT"), false)
    };
    let packages = [
        package("good", Some("MIT"), false),
        package("ours", None, true),
        package("ring", Some("Apache-2.0"), false),
        package("copyleft", Some("GPL-3.0"), false),
        package("silent", None, false),
        elsewhere("forked", "git+https://example.com/forked"),
    ];
    let wrong = check(&packages, &allowed(DENY), &banned(DENY));
    assert_eq!(
        wrong,
        [
            "ring 1.0.0 is banned: aws-lc-rs is used",
            "copyleft 1.0.0: `GPL-3.0` is not in the allow list of deny.toml",
            "silent 1.0.0 names no licence",
            "forked 1.0.0 comes from git+https://example.com/forked, not from crates.io",
        ]
    );
}

#[test]
fn the_repository_s_own_list_has_the_banned_crates() {
    let deny = std::fs::read_to_string(proc::root().join("deny.toml")).expect("deny.toml is there");
    let names: Vec<_> = banned(&deny).into_iter().map(|(name, _)| name).collect();
    for name in
        ["serde_yaml", "serde_yml", "rustls-pemfile", "bincode", "ring", "simd-json", "glommio", "openssl"]
    {
        assert!(names.iter().any(|n| n == name), "{name} is missing from deny.toml");
    }
    assert!(allowed(&deny).iter().any(|l| l == "Apache-2.0"));
}

#[test]
fn lines_of_the_tree_are_read() {
    let read = |line| package(line).map(|p| (p.name, p.version, p.license, p.own));
    let of = |name: &str, version: &str, license: Option<&str>, own| {
        Some((name.to_owned(), version.to_owned(), license.map(str::to_owned), own))
    };
    assert_eq!(
        read("libc v0.2.1|MIT OR Apache-2.0 (*)"),
        of("libc", "0.2.1", Some("MIT OR Apache-2.0"), false)
    );
    assert_eq!(read("syn v3.0.1 (proc-macro)|MIT"), of("syn", "3.0.1", Some("MIT"), false));
    assert_eq!(read("own v0.1.0 (/a/b)|"), of("own", "0.1.0", None, true));
    assert_eq!(read(""), None);
}
