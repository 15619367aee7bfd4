//! The layers of `src/lib.rs`, as a test: each uses only those below it, and no file uses another in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the lowest to the highest, in groups that do not use one another's.
const LAYERS: [&[&str]; 11] = [
    &["abi", "host", "limits"],
    &["drivers"],
    &["shm"],
    &["network"],
    &["rules"],
    &["process"],
    &["copy"],
    &["remote", "control"],
    &["objects"],
    &["engine"],
    &["faults"],
];
/// The highest, which nobody uses.
const TOP: &str = "verbs";

/// Names of modules, from the root of the crate.
type Module = Vec<String>;

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

fn module_of(path: &Path, root: &Path) -> Module {
    let name = path.strip_prefix(root).expect("below src").with_extension("");
    let mut parts: Module = name.iter().map(|part| part.to_str().expect("UTF-8").to_owned()).collect();
    parts.retain(|part| part != "mod" && part != "lib");
    parts
}

/// The code of a file, without comments and tests.
fn code_of(path: &Path) -> String {
    let whole = fs::read_to_string(path).expect("a source is readable");
    let code = whole.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// `a::{b, c::d}` as `a::b` and `a::c::d`.
fn flat(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((before, rest)) = tree.split_once('{') else { return vec![tree.to_owned()] };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let mut depth = 0;
    let parts = inner.split(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    parts.filter(|part| !part.trim().is_empty()).flat_map(|part| flat(&format!("{before}{}", part.trim()))).collect()
}

/// What `code` of module `from` names of this crate, by absolute path.
fn named(code: &str, from: &Module, modules: &BTreeMap<Module, String>) -> Vec<Module> {
    let uses = code.split("use ").skip(1).filter_map(|rest| rest.split(';').next());
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c: char| !is_path(c)).map(str::to_owned);
    let all = uses.flat_map(flat).chain(words);
    all.filter_map(|path| {
        let parts: Module = path.split("::").map(|part| part.trim().to_owned()).collect();
        let ups = parts.iter().take_while(|part| *part == "super").count();
        match parts[0].as_str() {
            "crate" => Some(parts[1..].to_vec()),
            "super" => Some([&from[..from.len().saturating_sub(ups)], &parts[ups..]].concat()),
            // A child of this module.
            _ => Some([from.clone(), parts].concat()).filter(|full| full.len() > from.len() + 1),
        }
    })
    .filter_map(|path| (1..=path.len()).rev().map(|n| path[..n].to_vec()).find(|start| modules.contains_key(start)))
    .filter(|found| found != from)
    .collect()
}

/// Which file uses which.
fn graph() -> BTreeMap<Module, BTreeSet<Module>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let modules: BTreeMap<Module, String> = sources(&root)
        .iter()
        .map(|path| (module_of(path, &root), code_of(path)))
        .filter(|(m, _)| !m.is_empty())
        .collect();
    modules.iter().map(|(from, code)| (from.clone(), named(code, from, &modules).into_iter().collect())).collect()
}

fn layer(name: &str) -> usize {
    if name == TOP {
        return LAYERS.len();
    }
    let found = LAYERS.iter().position(|layers| layers.contains(&name));
    found.unwrap_or_else(|| panic!("{name} is in no layer"))
}

#[test]
fn every_layer_uses_only_those_below_it() {
    let graph = graph();
    assert!(graph.len() > 60, "{} files: too few to believe", graph.len());
    let mut wrong = Vec::new();
    for (from, to) in graph.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to))) {
        if from[0] != to[0] && layer(&from[0]) <= layer(&to[0]) {
            wrong.push(format!("{} uses {}", from.join("/"), to.join("/")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_file_uses_another_in_a_circle() {
    let mut left = graph();
    // What uses nothing that is left, or is used by nothing that is left, is not part of a circle.
    loop {
        let is_used = |module: &Module| left.values().any(|used| used.contains(module));
        let free: BTreeSet<Module> =
            left.iter().filter(|(module, used)| used.is_empty() || !is_used(module)).map(|(m, _)| m.clone()).collect();
        if free.is_empty() {
            break;
        }
        left.retain(|module, _| !free.contains(module));
        left.values_mut().for_each(|used| used.retain(|module| !free.contains(module)));
    }
    let circles: Vec<String> =
        left.iter().map(|(module, used)| format!("{} uses {used:?}", module.join("/"))).collect();
    assert!(circles.is_empty(), "{circles:#?}");
}
