//! The architecture of this crate, as a test: `src/lib.rs` is its map.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("src is readable") {
        let path = entry.expect("src is readable").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Each file's module path (`pair::child`; of a mod.rs, its folder), and its text.
fn files() -> BTreeMap<String, String> {
    let mut paths = Vec::new();
    sources(&root(), &mut paths);
    let module = |path: &Path| {
        let inside = path.strip_prefix(root()).expect("below src").with_extension("");
        let inside = if inside.ends_with("mod") { inside.parent().expect("a folder") } else { &inside };
        inside.to_string_lossy().replace('/', "::")
    };
    paths.iter().map(|path| (module(path), fs::read_to_string(path).expect("a source"))).collect()
}

/// The paths that `text` names with `crate::`, outside of comments and tests; groups are written out.
fn named(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let code: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join(" ");
    let mut paths = Vec::new();
    for rest in code.split("crate::").skip(1) {
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(rest.len());
        let start = rest[..end].trim_end_matches(':');
        paths.push(start.to_owned());
        if let Some(group) = rest[end..].strip_prefix('{') {
            let group = group.split('}').next().unwrap_or_default();
            assert!(!group.contains('{'), "a group in a group, which this test cannot read: {group}");
            paths.extend(group.split(',').map(|name| format!("{start}::{}", name.trim())));
        }
    }
    paths
}

/// The files that each file uses.
fn uses(files: &BTreeMap<String, String>) -> BTreeMap<&str, BTreeSet<&str>> {
    let file_of = |path: &str| {
        let mut path = path.to_owned();
        while !path.is_empty() {
            if let Some((file, _)) = files.get_key_value(&path) {
                return Some(file.as_str());
            }
            path = path.rsplit_once("::").map_or_else(String::new, |(folder, _)| folder.to_owned());
        }
        None
    };
    let of = |(file, text): (&'_ String, &String)| {
        named(text).iter().filter_map(|path| file_of(path)).filter(|other| other != file).collect()
    };
    files.iter().map(|entry| (entry.0.as_str(), of(entry))).collect()
}

#[test]
fn no_two_files_use_each_other_directly_or_not() {
    let files = files();
    let mut uses = uses(&files);
    // What uses no file that is left is in no cycle.
    while let Some(file) = uses.iter().find(|(_, others)| others.iter().all(|other| !uses.contains_key(other))) {
        let file = *file.0;
        uses.remove(file);
    }
    assert!(uses.is_empty(), "in a cycle, or above one: {:?}", uses.keys());
}

#[test]
fn each_folder_uses_those_above_it_in_the_map_alone() {
    let files = files();
    let map = &files["lib"];
    let rows = map.lines().filter_map(|line| line.strip_prefix("//! | ")?.split(" | ").next());
    let folders: Vec<String> = rows.map(|cell| cell.replace(['`', '[', ']'], "")).filter(|f| f != "folder").collect();
    let on_disk: BTreeSet<_> = files.keys().filter_map(|file| Some(file.split_once("::")?.0.to_owned())).collect();
    assert_eq!(folders.iter().cloned().collect::<BTreeSet<_>>(), on_disk, "the folders in the map and on disk");
    let place = |file: &str| folders.iter().position(|folder| file.split("::").next() == Some(folder));
    let mut wrong = Vec::new();
    for (file, others) in uses(&files).iter().filter(|(file, _)| **file != "lib") {
        let up =
            others.iter().filter(|other| place(other).is_some_and(|other| place(file).is_none_or(|own| own < other)));
        wrong.extend(up.map(|other| format!("{file} uses {other}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
