//! The architecture as tests: who may use whom, where `unsafe` may be, and how long a file may be.

mod graph;
mod licences;

use graph::{Graph, code, files};
use std::fs;
use std::path::{Path, PathBuf};

/// Each layer of the library, and the layers that it may use besides itself and `error`.
const LAYERS: &[(&str, &[&str])] = &[
    ("abi", &["net", "proto"]),
    ("net", &["proto", "verbs", "host", "stats", "version.rs"]),
    ("proto", &[]),
    ("verbs", &[]),
    ("host", &[]),
    ("stats", &["version.rs"]),
    ("version.rs", &[]),
    ("error.rs", &[]),
];

/// Each folder of `net`, and the folders there that it may use besides itself.
const NET: &[(&str, &[&str])] = &[
    ("control", &[]),
    ("mr", &["control"]),
    ("operations", &[]),
    ("explain", &["control", "operations"]),
    ("device", &["control", "mr", "explain"]),
    ("qp", &["control", "mr", "device"]),
    ("recovery", &["control", "mr", "device", "qp"]),
    ("data", &["control", "mr", "device", "operations", "qp", "recovery"]),
    ("setup", &["control", "mr", "explain", "device", "qp", "data"]),
    ("network.rs", &["control", "mr", "device", "qp", "data", "setup"]),
];

/// Files outside of `abi` and `verbs` that make system calls, or keep a promise that the compiler cannot check.
const UNSAFE_FILES: &[&str] = &[
    "host/cuda.rs",
    "net/control/fork.rs",
    "net/control/signals.rs",
    "net/control/sync.rs",
    "net/data/exclusive_cell.rs",
    "net/device/gdr.rs",
    "net/device/nic.rs",
    "net/mr/cache.rs",
    "net/mr/handle.rs",
    "stats/clock.rs",
    "stats/file.rs",
    "stats/lock.rs",
];

/// Files that still use each other in a circle, by crate. An entry is removed as soon as its file is in no circle any more; none
/// is added.
const CYCLES: &[(&str, &[&str])] = &[];

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `src`: its name, and its text without comments and unit tests.
fn sources() -> Vec<(String, String)> {
    let root = repository().join("src");
    let name = |p: &Path| p.strip_prefix(&root).expect("below src").to_string_lossy().into_owned();
    let text = |p: &PathBuf| code(&fs::read_to_string(p).expect("a source is readable"));
    files(&root, &["rs"]).iter().map(|p| (name(p), text(p))).collect()
}

/// Whether a file of `src` is compiled for tests only: its module, or one around it, is declared so in a `mod.rs`.
fn is_test(file: &str) -> bool {
    let path = Path::new(file);
    path.ancestors().any(|part| {
        let name = part.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let around = part.parent().map(|folder| repository().join("src").join(folder).join("mod.rs"));
        let text = around.and_then(|map| fs::read_to_string(map).ok()).unwrap_or_default();
        ["mod", "pub mod", "pub(super) mod", "pub(crate) mod"].iter().any(|word| {
            ["test", "any(test, fuzzing)"].iter().any(|when| text.contains(&format!("#[cfg({when})]\n{word} {name};")))
        })
    })
}

/// The uses between parts of `src` that `rules` do not allow. The part of a file is the part of its path after `prefix`.
fn forbidden(prefix: &str, rules: &[(&str, &[&str])]) -> Vec<String> {
    let part = |file: &str| file.strip_prefix(prefix).map(|rest| rest.split('/').next().unwrap_or(rest).to_owned());
    let rule = |part: &str| rules.iter().find(|(name, _)| *name == part);
    let mut wrong = Vec::new();
    for (file, uses) in &Graph::read(&repository().join("src")).uses {
        let Some(from) =
            part(file).filter(|from| !["lib.rs", "testing.rs", "inspect.rs", "mod.rs"].contains(&from.as_str()))
        else {
            continue;
        };
        let Some((_, allowed)) = rule(&from) else {
            wrong.push(format!("{file} is in no part that the rules name"));
            continue;
        };
        for used in uses {
            let Some(to) = part(used).filter(|to| *to != from && rule(to).is_some() && to != "error.rs") else {
                continue;
            };
            if !allowed.contains(&to.as_str()) {
                wrong.push(format!("{file} uses {used}"));
            }
        }
    }
    wrong
}

#[test]
fn layers_use_only_the_layers_below() {
    let wrong = forbidden("", LAYERS);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn folders_of_net_use_only_the_folders_below() {
    let wrong = forbidden("net/", NET);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let mut wrong = Vec::new();
    for root in ["src", "tools/softrnic/src", "tools/softrnic-cli/src", "tools/ferrite/src"] {
        if !repository().join(root).is_dir() {
            continue;
        }
        let graph = Graph::read(&repository().join(root));
        let allowed = CYCLES.iter().find(|(name, _)| *name == root).map_or(&[][..], |(_, files)| files);
        let cycles = graph.cycles();
        for cycle in &cycles {
            if cycle.iter().any(|file| !allowed.contains(file)) {
                wrong.push(format!("{root}: a circle of {cycle:?}"));
            }
        }
        let stale = allowed.iter().filter(|file| !cycles.iter().flatten().any(|other| other == *file));
        wrong.extend(stale.map(|file| format!("{root}: {file} is in no circle any more: remove it from CYCLES")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn paths_of_all_forms_are_uses() {
    let source = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let graph = Graph::of(vec![
        source("lib.rs", "mod a; mod b; fn f() { b::g() }"),
        source("a/mod.rs", "pub mod c; pub mod d;"),
        source("a/c.rs", "use super::d::{self, X as Y, e::Z}; use crate::{b, error::E};\nlet text = \"crate::lib\";"),
        source("a/d.rs", "fn f() { super::super::b::g(); }"),
        source("b.rs", "const QUOTE: char = '\"'; use crate::a::c::V;"),
        source("error.rs", ""),
    ]);
    let uses = |file: &str| graph.uses[file].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(uses("lib.rs"), ["b.rs"]);
    assert_eq!(uses("a/c.rs"), ["a/d.rs", "b.rs", "error.rs"]);
    assert_eq!((uses("a/d.rs"), uses("b.rs"), uses("error.rs")), (vec!["b.rs"], vec!["a/c.rs"], vec![]));
    assert_eq!(graph.cycles(), [["a/c.rs", "a/d.rs", "b.rs"]]);
}

#[test]
fn unsafe_is_only_in_the_files_that_are_named() {
    let has_unsafe = |text: &str| text.replace("unsafe_code", "").contains("unsafe");
    let mut wrong = Vec::new();
    for (file, text) in sources() {
        let is_named = UNSAFE_FILES.contains(&file.as_str());
        let may_have = file.starts_with("abi/") || file.starts_with("verbs/") || is_named;
        match has_unsafe(&text) {
            true if !may_have => wrong.push(format!("unsafe in {file}")),
            false if is_named => wrong.push(format!("no unsafe in {file}: remove it from UNSAFE_FILES")),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whether a file of another folder than `verbs` uses the structs of libibverbs.
fn uses_verbs_sys(text: &str) -> bool {
    let words = |line: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "sys");
    text.contains("verbs::sys") || text.lines().any(|line| line.contains("use crate::verbs::{") && words(line))
}

#[test]
fn only_verbs_names_libibverbs_structs_and_only_abi_nccl() {
    for (file, text) in sources() {
        assert!(
            file.starts_with("verbs/") || !uses_verbs_sys(&text) || file == "testing.rs",
            "{file} names libibverbs' structs"
        );
        assert!(file.starts_with("abi/") || !text.contains("nccl::"), "{file} names NCCL's types");
    }
}

#[test]
fn the_library_never_panics_prints_or_ends_the_process() {
    const BANNED: &[&str] = &[
        "println!",
        "eprintln!",
        "process::exit",
        "process::abort",
        ".unwrap()",
        ".expect(",
        "panic!(",
        "todo!(",
        "libc::signal",
        "sigaction",
    ];
    for (file, text) in sources() {
        // Test code of the library.
        if is_test(&file) {
            continue;
        }
        for banned in BANNED {
            assert!(!text.contains(banned), "{file} has {banned}");
        }
    }
}
