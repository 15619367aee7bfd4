//! The architecture, as a test: who may use whom, and where `unsafe` lives.

use std::fs;
use std::path::{Path, PathBuf};

/// Each layer and what it may name besides itself and `error`.
const LAYERS: &[(&str, &[&str])] =
    &[("abi", &["net", "proto"]), ("net", &["proto", "verbs", "host"]), ("proto", &[]), ("verbs", &[]), ("host", &[])];

/// Files outside of `abi` and `verbs` that make system calls or keep a promise that the compiler cannot see.
const UNSAFE_FILES: &[&str] = &[
    "host/cuda.rs",
    "host/iface.rs",
    "host/random.rs",
    "net/control/fork.rs",
    "net/device/gdr.rs",
    "net/mr/handle.rs",
    "net/mr/region.rs",
    "net/data/exclusive_cell.rs",
    "net/control/watcher.rs",
];

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("src is readable") {
        let path = entry.expect("src is readable").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found
}

/// Every file below `src`: its name, and its text without comments and tests.
fn files() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let name = |p: &Path| p.strip_prefix(&root).expect("below src").to_string_lossy().into_owned();
    let text = |p: &Path| {
        let whole = fs::read_to_string(p).expect("a source is readable");
        let code = whole.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().to_owned();
        code.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
    };
    sources(&root).iter().map(|p| (name(p), text(p))).collect()
}

/// The layers that `text` names by `crate::…`.
fn named(text: &str) -> Vec<String> {
    let word = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    text.split("crate::").skip(1).map(word).collect()
}

#[test]
fn arrows_point_downwards() {
    let mut wrong = Vec::new();
    for (file, text) in files() {
        for hidden in ["crate::{", "super::super"] {
            assert!(!text.contains(hidden), "{file} has {hidden}, which this test cannot follow");
        }
        let Some((layer, allowed)) = LAYERS.iter().find(|(l, _)| file.starts_with(&format!("{l}/"))) else {
            assert!(["lib.rs", "error.rs"].contains(&file.as_str()), "{file} is in no layer");
            continue;
        };
        for other in named(&text) {
            let is_layer = LAYERS.iter().any(|(l, _)| *l == other);
            if is_layer && other != *layer && !allowed.contains(&other.as_str()) {
                wrong.push(format!("{file} uses {other}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn unsafe_has_an_address() {
    let wrong: Vec<_> = files()
        .into_iter()
        .filter(|(file, _)| {
            !file.starts_with("abi/") && !file.starts_with("verbs/") && !UNSAFE_FILES.contains(&file.as_str())
        })
        .filter(|(_, text)| text.replace("unsafe_code", "").contains("unsafe"))
        .map(|(file, _)| file)
        .collect();
    assert!(wrong.is_empty(), "unsafe in {wrong:#?}");
}

#[test]
fn only_verbs_names_the_binding_and_only_abi_nccl() {
    for (file, text) in files() {
        assert!(file.starts_with("verbs/") || !text.contains("rdma_sys"), "{file} names rdma_sys");
        assert!(file.starts_with("abi/") || !text.contains("nccl::"), "{file} names NCCL's types");
    }
}

#[test]
fn the_library_is_a_good_guest() {
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
    for (file, text) in files() {
        // These are tests.
        let tests = ["proto/sim.rs", "proto/hostile.rs", "proto/control/sim/", "proto/control/plane/tests/"];
        if tests.iter().any(|test| file.starts_with(test)) {
            continue;
        }
        for banned in BANNED {
            assert!(!text.contains(banned), "{file} has {banned}");
        }
    }
}

fn deny_toml() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deny.toml")).expect("deny.toml")
}

/// The licences that deny.toml allows.
fn allowed_licences() -> Vec<String> {
    let text = deny_toml();
    let list = text.split("[licenses]").nth(1).and_then(|t| t.split(']').next()).expect("a list of licences");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// What deny.toml says of a package whose manifest names no licence.
fn clarified(package: &str) -> String {
    let text = deny_toml();
    let section = text.split("[[licenses.clarify]]").skip(1).find(|s| s.contains(&format!("crate = \"{package}\"")));
    let expression = section.and_then(|s| s.split("expression = \"").nth(1)).and_then(|s| s.split('"').next());
    expression.unwrap_or("none").to_owned()
}

/// Whether an SPDX expression can be met with `allowed`: one side of each OR, both of each AND.
fn is_met(expression: &str, allowed: &[String]) -> bool {
    let plain = expression.replace(['(', ')'], "").replace('/', " OR ");
    plain.split(" AND ").all(|all| all.split(" OR ").any(|one| allowed.iter().any(|a| a == one.trim())))
}

/// `cargo deny` says the same and more; this needs nothing but cargo.
#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    assert!(packages.len() > 20, "cargo lists the dependencies");
    let allowed = allowed_licences();
    let licence_of = |package: &serde_json::Value| match package["license"].as_str() {
        Some(expression) => expression.to_owned(),
        None => clarified(package["name"].as_str().unwrap_or_default()),
    };
    let wrong: Vec<_> = packages
        .iter()
        .filter(|p| !is_met(&licence_of(p), &allowed))
        .map(|p| format!("{} {}", p["name"], p["license"]))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
