//! The licences of all dependencies.

use std::fs;
use std::path::Path;

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
