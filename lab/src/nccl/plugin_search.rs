//! How each release of NCCL reads `NCCL_NET_PLUGIN`, and which file it then takes. A test holds this against the loaders of stock
//! NCCL (`tests/doctor/loaders.rs`); those of 2.20.5, 2.22.3, 2.23.4, 2.25.1, 2.26.2, 2.27.5, 2.29.7 and 2.31.2 were tried by hand.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::nccl::release::NcclRelease;

/// What NCCL opens where `NCCL_NET_PLUGIN` is not set.
pub const DEFAULT_FILE: &str = "libnccl-net.so";
/// Entries of a list that NCCL looks at.
const MAX_ENTRIES: usize = 14;
/// An entry of a list that is as long as this is ignored.
const ENTRY_LIMIT: usize = 255;

/// What NCCL makes of the setting's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// A name, of which NCCL makes `libnccl-net-NAME.so`.
    Name,
    /// A file; if it cannot be opened, a name. NCCL cuts the text after so many characters.
    File { cut: usize },
    /// A list of these, separated by commas.
    List { has_none: bool },
}

/// The rules of the releases from one on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginSearch {
    /// The first release: major and minor number.
    pub since: (u32, u32),
    /// The versions of ncclNet that it takes.
    pub tables: RangeInclusive<u32>,
    reading: Reading,
    /// Characters that a file's name may have that NCCL makes of a plugin's name.
    name_limit: usize,
}

const fn search(minor: u32, tables: RangeInclusive<u32>, reading: Reading, name_limit: usize) -> PluginSearch {
    PluginSearch { since: (2, minor), tables, reading, name_limit }
}

/// The rules, oldest release first.
pub const SEARCHES: [PluginSearch; 7] = [
    search(20, 5..=8, Reading::Name, 127),
    search(21, 5..=8, Reading::File { cut: usize::MAX }, usize::MAX),
    search(24, 5..=9, Reading::File { cut: usize::MAX }, usize::MAX),
    search(26, 6..=10, Reading::File { cut: 254 }, 254),
    search(27, 6..=10, Reading::List { has_none: false }, 254),
    search(28, 6..=11, Reading::List { has_none: true }, 254),
    search(30, 6..=12, Reading::List { has_none: true }, 254),
];

/// A plugin that the setting names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The text of the setting.
    pub text: String,
    /// What NCCL opens, in this order, until one can be opened.
    pub files: Vec<String>,
    /// Why NCCL ignores it.
    pub ignored: Option<&'static str>,
}

/// What opening a file leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// There is no such file.
    Missing,
    /// It cannot be opened: which file, and why.
    Refused(PathBuf, String),
    /// It can be: where it is, and the versions of ncclNet in it.
    Tables(PathBuf, Vec<u32>),
}

/// A file that NCCL takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugin {
    /// The file.
    pub path: PathBuf,
    /// The versions of ncclNet in it, in order.
    pub tables: Vec<u32>,
}

/// What a release makes of the setting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The plugins that NCCL would take, the first one first; each other one only if those before it do not start.
    pub plugins: Vec<Plugin>,
    /// Why it takes no other one.
    pub passed: Vec<String>,
}

impl PluginSearch {
    /// The rules of a release. `None`: it is older than 2.20.
    #[must_use]
    pub fn of(version: (u32, u32)) -> Option<&'static Self> {
        SEARCHES.iter().rev().find(|search| search.since <= version)
    }

    /// The rules of a release whose loader this program can call.
    pub fn of_release(release: NcclRelease) -> &'static Self {
        let minor = release.version % 10_000 / 100;
        Self::of((2, minor.unsigned_abs())).unwrap_or(&SEARCHES[0])
    }

    /// Whether the setting may name several plugins.
    #[must_use]
    pub fn takes_lists(&self) -> bool {
        matches!(self.reading, Reading::List { .. })
    }

    /// What NCCL looks for, in its order, with this value of `NCCL_NET_PLUGIN`.
    #[must_use]
    pub fn entries(&self, setting: Option<&str>) -> Vec<Entry> {
        let default = || vec![Entry { text: DEFAULT_FILE.into(), files: vec![DEFAULT_FILE.into()], ignored: None }];
        match (self.reading, setting) {
            (_, None) | (Reading::Name | Reading::File { .. }, Some("")) => default(),
            (Reading::Name, Some(name)) => {
                vec![Entry { text: name.into(), files: self.file_of_name(name).into_iter().collect(), ignored: None }]
            }
            (Reading::File { cut }, Some(text)) => {
                let text = text.get(..cut).unwrap_or(text);
                let files = [text.to_owned()].into_iter().chain(self.file_of_name(text)).collect();
                vec![Entry { text: text.into(), files, ignored: None }]
            }
            (Reading::List { has_none: true }, Some(text)) if text.eq_ignore_ascii_case("none") => Vec::new(),
            (Reading::List { .. }, Some(text)) => self.list(text),
        }
    }

    fn list(&self, text: &str) -> Vec<Entry> {
        let mut left = MAX_ENTRIES;
        let entry = |text: &str| {
            let is_path = text.contains('/');
            let files = [text.to_owned()].into_iter().chain(self.file_of_name(text).filter(|_| !is_path)).collect();
            let ignored = match (text.len() >= ENTRY_LIMIT, left) {
                (true, _) => Some("it has 255 characters or more"),
                (false, 0) => Some("14 others come before it"),
                (false, _) => None,
            };
            left -= usize::from(ignored.is_none());
            Entry { text: text.into(), files, ignored }
        };
        text.split(',').filter(|text| !text.is_empty()).map(entry).collect()
    }

    /// `libnccl-net-NAME.so`, unless that is too long.
    fn file_of_name(&self, name: &str) -> Option<String> {
        Some(format!("libnccl-net-{name}.so")).filter(|file| file.len() <= self.name_limit)
    }

    /// What NCCL takes with this value of `NCCL_NET_PLUGIN`, where `open` tells what opening a file leads to.
    pub fn outcome(&self, setting: Option<&str>, open: impl Fn(&str) -> Opened) -> Outcome {
        let mut outcome = Outcome::default();
        for entry in self.entries(setting) {
            if let Some(why) = entry.ignored {
                outcome.passed.push(format!("{} is ignored, since {why}", shown(&entry.text)));
                continue;
            }
            let mut missing = Vec::new();
            for file in &entry.files {
                match open(file) {
                    Opened::Missing => missing.push(shown(file)),
                    Opened::Refused(path, why) => outcome.passed.push(format!("{}: {why}", path.display())),
                    Opened::Tables(path, tables) => {
                        if tables.iter().any(|table| self.tables.contains(table)) {
                            outcome.plugins.push(Plugin { path, tables });
                        } else {
                            outcome.passed.push(format!("{} {}", path.display(), self.lacks(&tables)));
                        }
                        missing.clear();
                        break;
                    }
                }
            }
            if !missing.is_empty() {
                outcome.passed.push(format!("{} not found", missing.join(", ")));
            }
        }
        outcome
    }

    fn lacks(&self, tables: &[u32]) -> String {
        if tables.is_empty() {
            return "is no network plugin".into();
        }
        format!("has ncclNet {}, and {} to {} are taken", versions(tables), self.tables.start(), self.tables.end())
    }
}

/// A name as the setting has it; in quotation marks if it has blanks, which belong to it.
fn shown(name: &str) -> String {
    if name.contains(char::is_whitespace) { format!("{name:?} (with its blanks)") } else { name.into() }
}

/// Versions in order: `v8 to v12`, or `v8, v11`.
#[must_use]
pub fn versions(tables: &[u32]) -> String {
    match tables {
        [first, .., last] if (*first..=*last).eq(tables.iter().copied()) && tables.len() > 2 => {
            format!("v{first} to v{last}")
        }
        tables => tables.iter().map(|version| format!("v{version}")).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_in_few_words() {
        let said = [&[8, 9, 10, 11, 12][..], &[8, 11], &[8, 9], &[12], &[]].map(versions);
        assert_eq!(said, ["v8 to v12", "v8, v11", "v8, v9", "v12", ""]);
    }

    #[test]
    fn a_release_has_the_rules_of_the_last_one_that_changed_them() {
        let since = |version| PluginSearch::of(version).map(|search| search.since);
        assert_eq!(since((2, 19)), None);
        assert_eq!([since((2, 20)), since((2, 23)), since((2, 25))], [Some((2, 20)), Some((2, 21)), Some((2, 24))]);
        assert_eq!([since((2, 29)), since((2, 32)), since((3, 0))], [Some((2, 28)), Some((2, 30)), Some((2, 30))]);
    }
}
