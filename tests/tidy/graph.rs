//! Which source file of a crate uses which, read from the paths in the sources: `crate::`, `super::`, `self::`, and the names
//! of a file's own child modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The files of a crate and their uses. Comments, string literals and unit tests do not count.
pub(crate) struct Graph {
    /// For each file, by its path below the crate's root folder, the files that it uses.
    pub(crate) uses: BTreeMap<String, BTreeSet<String>>,
}

/// A file's text without comments and unit tests.
pub(crate) fn code(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    code.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// All files below `dir` with one of these extensions.
pub(crate) fn files(dir: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.expect("the folder is readable").path();
        let is_wanted = |path: &Path| path.extension().is_some_and(|e| extensions.iter().any(|known| e == *known));
        match path.is_dir() {
            true => found.extend(files(&path, extensions)),
            false if is_wanted(&path) => found.push(path),
            false => {}
        }
    }
    found.sort();
    found
}

type Module = Vec<String>;

impl Graph {
    /// Reads the crate whose sources are in `root`.
    pub(crate) fn read(root: &Path) -> Self {
        let name = |path: &PathBuf| path.strip_prefix(root).expect("below root").to_string_lossy().into_owned();
        let text = |path: &PathBuf| code(&fs::read_to_string(path).expect("a source is readable"));
        Self::of(files(root, &["rs"]).iter().map(|path| (name(path), text(path))).collect())
    }

    /// The graph of sources that are given as names and texts.
    pub(crate) fn of(sources: Vec<(String, String)>) -> Self {
        let by_module: BTreeMap<Module, &str> = sources.iter().map(|(file, _)| (module(file), file.as_str())).collect();
        let uses = sources.iter().map(|(file, text)| {
            let paths = paths(&tokens(text), &module(file), &by_module);
            let used = paths.iter().filter_map(|path| {
                (0..=path.len()).rev().find_map(|length| by_module.get(&path[..length])).map(|file| (*file).to_owned())
            });
            (file.clone(), used.filter(|used| used != file).collect())
        });
        Self { uses: uses.collect() }
    }

    /// The groups of files that use each other in a circle.
    pub(crate) fn cycles(&self) -> Vec<Vec<&str>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> = self.uses.keys().map(|f| (f.as_str(), self.reach(f))).collect();
        let mut cycles: Vec<Vec<&str>> = Vec::new();
        for (file, reach) in reached.iter().filter(|(file, reach)| reach.contains(*file)) {
            if !cycles.iter().any(|cycle| cycle.contains(file)) {
                cycles.push(reach.iter().filter(|other| reached[*other].contains(file)).copied().collect());
            }
        }
        cycles
    }

    /// The files that `file` uses, directly or not.
    fn reach(&self, file: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&str> = self.uses[file].iter().map(String::as_str).collect();
        while let Some(file) = next.pop() {
            if reached.insert(file) {
                next.extend(self.uses[file].iter().map(String::as_str));
            }
        }
        reached
    }
}

/// The module of a file. A program in `bin/` is a crate of its own, as if its folder was the root.
fn module(file: &str) -> Module {
    let file = file.strip_suffix(".rs").unwrap_or(file);
    let mut parts: Vec<_> = file.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

/// How many parts of the module path are the root of its crate.
fn root_length(module: &[String]) -> usize {
    if module.first().is_some_and(|first| first == "bin") { 2.min(module.len()) } else { 0 }
}

/// Identifiers and the punctuation of paths; string literals are left out.
fn tokens(text: &str) -> Vec<String> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else if first == '"' {
            let mut escaped = false;
            let end = rest[1..].find(|c| match (c, escaped) {
                (_, true) => std::mem::take(&mut escaped) && false,
                ('\\', _) => {
                    escaped = true;
                    false
                }
                (c, _) => c == '"',
            });
            end.map_or(rest.len(), |end| end + 2)
        } else {
            first.len_utf8()
        };
        let token = &rest[..length];
        if !first.is_whitespace() && first != '"' {
            tokens.push(token.to_owned());
        }
        // A quote as a character literal begins no string.
        rest = if rest.starts_with("'\"'") { &rest[3..] } else { &rest[length..] };
    }
    tokens
}

/// The absolute paths in the tokens of `module`'s file.
fn paths(tokens: &[String], module: &[String], modules: &BTreeMap<Module, &str>) -> Vec<Module> {
    let mut found = Vec::new();
    let root = &module[..root_length(module)];
    for (i, token) in tokens.iter().enumerate() {
        let begins = i == 0 || tokens[i - 1] != "::";
        let child: Module = module.iter().cloned().chain([token.clone()]).collect();
        let goes_on = tokens.get(i + 1).is_some_and(|next| next == "::");
        let (prefix, next) = match token.as_str() {
            "crate" if goes_on => (root.to_vec(), i + 2),
            "self" if goes_on => (module.to_vec(), i + 2),
            "super" if goes_on && begins => {
                let mut ups = 1;
                while tokens.get(i + 2 * ups).is_some_and(|t| t == "super") {
                    ups += 1;
                }
                (module[..module.len().saturating_sub(ups)].to_vec(), i + 2 * ups)
            }
            _ if begins && goes_on && modules.contains_key(&child) => (child, i + 2),
            _ => continue,
        };
        tree(tokens, next, prefix, &mut found);
    }
    found
}

/// Reads a path, or a tree of paths in braces, that begins at token `at` and goes on after `prefix`. Returns where it ends.
fn tree(tokens: &[String], mut at: usize, mut prefix: Module, found: &mut Vec<Module>) -> usize {
    match tokens.get(at).map(String::as_str) {
        Some("{") => {
            at += 1;
            while tokens.get(at).is_some_and(|t| t != "}") {
                let before = at;
                at = tree(tokens, at, prefix.clone(), found);
                while tokens.get(at).is_some_and(|t| t != "," && t != "}") {
                    at += 1;
                }
                at += usize::from(tokens.get(at).is_some_and(|t| t == ","));
                at = at.max(before + 1);
            }
            return at + 1;
        }
        Some(word) if word.starts_with(|c: char| c.is_alphabetic() || c == '_') => {
            if word != "self" {
                prefix.push(word.to_owned());
            }
            if tokens.get(at + 1).is_some_and(|t| t == "::") {
                return tree(tokens, at + 2, prefix, found);
            }
        }
        _ => {}
    }
    found.push(prefix);
    at + 1
}
