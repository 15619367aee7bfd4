//! How each release of NCCL reads `NCCL_NET_PLUGIN`, and which file it then takes. A test holds
//! this against the loaders of stock NCCL (`crates/ferrite/tests/doctor/loaders.rs`); those of
//! 2.20.5, 2.22.3, 2.23.4, 2.25.1, 2.26.2, 2.27.5, 2.29.7 and 2.31.2 were tried by hand.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::nccl::release::NcclRelease;
use crate::nccl::shared_object;
use crate::system::dist::Root;
use crate::system::host;

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

const fn search(
    minor: u32,
    tables: RangeInclusive<u32>,
    reading: Reading,
    name_limit: usize,
) -> PluginSearch {
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
    /// The plugins that NCCL would take, the first one first; each other one only if those before
    /// it do not start.
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
        let default = || {
            vec![Entry {
                text: DEFAULT_FILE.into(),
                files: vec![DEFAULT_FILE.into()],
                ignored: None,
            }]
        };
        match (self.reading, setting) {
            (_, None) | (Reading::Name | Reading::File { .. }, Some("")) => default(),
            (Reading::Name, Some(name)) => {
                vec![Entry {
                    text: name.into(),
                    files: self.file_of_name(name).into_iter().collect(),
                    ignored: None,
                }]
            }
            (Reading::File { cut }, Some(text)) => {
                let text = text.get(..cut).unwrap_or(text);
                let files = [text.to_owned()].into_iter().chain(self.file_of_name(text)).collect();
                vec![Entry { text: text.into(), files, ignored: None }]
            }
            (Reading::List { has_none: true }, Some(text)) if text.eq_ignore_ascii_case("none") => {
                Vec::new()
            }
            (Reading::List { .. }, Some(text)) => self.list(text),
        }
    }

    fn list(&self, text: &str) -> Vec<Entry> {
        let mut left = MAX_ENTRIES;
        let entry = |text: &str| {
            let is_path = text.contains('/');
            let files = [text.to_owned()]
                .into_iter()
                .chain(self.file_of_name(text).filter(|_| !is_path))
                .collect();
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

    /// What NCCL takes with this value of `NCCL_NET_PLUGIN`, where `open` tells what opening a file
    /// leads to.
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
                    Opened::Refused(path, why) => {
                        outcome.passed.push(format!("{}: {why}", path.display()))
                    }
                    Opened::Tables(path, tables) => {
                        if tables.iter().any(|table| self.tables.contains(table)) {
                            outcome.plugins.push(Plugin { path, tables });
                        } else {
                            outcome.passed.push(format!(
                                "{} {}",
                                path.display(),
                                self.lacks(&tables)
                            ));
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
        format!(
            "has ncclNet {}, and {} to {} are taken",
            versions(tables),
            self.tables.start(),
            self.tables.end()
        )
    }
}

/// A name as the setting has it; in quotation marks if it has blanks, which belong to it.
fn shown(name: &str) -> String {
    if name.contains(char::is_whitespace) {
        format!("{name:?} (with its blanks)")
    } else {
        name.into()
    }
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

/// Folders that the dynamic loader searches without being told.
const DEFAULT: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];
/// Symbols of network plugins begin so.
const TABLE: &str = "ncclNetPlugin_v";

/// The loader of a process with this environment in the working directory `folder`, on the machine
/// whose files are below `root`.
#[derive(Debug, Clone, Copy)]
pub struct DynamicLoader<'m> {
    pub root: &'m Root,
    pub env: &'m BTreeMap<String, String>,
    pub folder: &'m Path,
}

impl DynamicLoader<'_> {
    /// The value of a variable that is set and not empty.
    pub fn var(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// A path from the working directory.
    pub fn absolute(&self, path: impl AsRef<Path>) -> PathBuf {
        // Without the parts that say nothing.
        self.folder.join(path).components().collect()
    }

    /// The folders that it searches, in its order: those of `LD_LIBRARY_PATH`, of
    /// `/etc/ld.so.conf`, the default ones.
    fn folders(&self) -> Vec<PathBuf> {
        // An empty part stands for the working directory.
        let listed =
            self.var("LD_LIBRARY_PATH").map(|list| list.split([':', ';']).collect::<Vec<_>>());
        let mut folders: Vec<PathBuf> =
            listed.unwrap_or_default().iter().map(|part| self.absolute(part)).collect();
        let more = self
            .root
            .names("/etc/ld.so.conf.d")
            .into_iter()
            .map(|name| Path::new("/etc/ld.so.conf.d").join(name));
        let configured = [PathBuf::from("/etc/ld.so.conf")].into_iter().chain(more);
        for text in configured.filter_map(|path| self.root.text(path)) {
            folders.extend(
                text.lines().map(str::trim).filter(|line| line.starts_with('/')).map(PathBuf::from),
            );
        }
        let of_processor = ["/lib", "/usr/lib"]
            .map(|folder| format!("{folder}/{}-linux-gnu", std::env::consts::ARCH));
        folders.extend(of_processor.into_iter().map(PathBuf::from));
        folders.extend(DEFAULT.map(PathBuf::from));
        folders
    }

    /// All places of the library `file`, in its order.
    pub fn places(&self, file: &str) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = Vec::new();
        for folder in self.folders() {
            let path = folder.join(file);
            let resolved = self.root.resolved(&path);
            let is_new = |known: &PathBuf| self.root.resolved(known) != resolved;
            if resolved.is_some() && found.iter().all(is_new) {
                found.push(path);
            }
        }
        found
    }

    /// What becomes of opening `name`: a path if it has a slash, else a library that it looks for.
    pub fn open(&self, name: &str) -> Opened {
        let places = if name.contains('/') {
            let path = self.absolute(name);
            if self.root.exists(&path) { vec![path] } else { Vec::new() }
        } else {
            self.places(name)
        };
        let mut refused = Opened::Missing;
        for path in places {
            let file = self.root.path(&path);
            match host::obstacle(&file) {
                // It looks on where a file is for another processor, and there alone.
                Ok(Some(why)) if host::is_for_another_processor(&file) => {
                    refused = Opened::Refused(path, why)
                }
                Ok(Some(why)) => return Opened::Refused(path, why),
                _ => return opened(path, &file),
            }
        }
        refused
    }
}

fn opened(path: PathBuf, file: &Path) -> Opened {
    match shared_object::exports(file, TABLE) {
        Err(problem) => Opened::Refused(path, format!("it cannot be loaded: {problem}")),
        Ok(tables) => {
            let mut versions: Vec<u32> =
                tables.iter().filter_map(|name| name[TABLE.len()..].parse().ok()).collect();
            versions.sort_unstable();
            Opened::Tables(path, versions)
        }
    }
}

/// Major, minor and patch number.
pub type Version = (u32, u32, u32);

/// A file libnccl.so.2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NcclFile {
    pub path: PathBuf,
    /// `None`: it does not tell.
    pub version: Option<Version>,
    /// PyTorch of the same Python takes it, whatever the loader's folders have.
    pub is_of_pytorch: bool,
    /// The wheels beside it that install this file, such as `nvidia-nccl-cu12 2.21.5`.
    pub wheels: Vec<String>,
}

const FILE: &str = "libnccl.so.2";

/// Where the loader and Python look: those of the loader first, in its order; then those of Python,
/// the job's own first.
pub fn find(loader: DynamicLoader<'_>) -> Vec<NcclFile> {
    let mut found: Vec<NcclFile> = Vec::new();
    let mut add = |path: PathBuf, is_of_pytorch: bool, wheels: Vec<String>| {
        let resolved = loader.root.resolved(&path);
        match found.iter_mut().find(|known| loader.root.resolved(&known.path) == resolved) {
            Some(known) => {
                known.is_of_pytorch |= is_of_pytorch;
                known.wheels.extend(wheels);
                known.wheels.sort();
                known.wheels.dedup();
            }
            None => {
                let version = version(&loader.root.path(&path));
                found.push(NcclFile { path, version, is_of_pytorch, wheels });
            }
        }
    };
    loader.places(FILE).into_iter().for_each(|path| add(path, false, Vec::new()));
    for folder in python_folders(loader) {
        let path = folder.join("nvidia/nccl/lib").join(FILE);
        if loader.root.exists(&path) {
            let names = loader.root.names(&folder);
            let wheels = names.iter().filter_map(|name| wheel(name)).collect();
            add(path, loader.root.exists(folder.join("torch/lib")), wheels);
        }
    }
    found
}

/// The wheel of NCCL whose metadata are in a folder of this name.
fn wheel(folder: &str) -> Option<String> {
    let (cuda, release) =
        folder.strip_prefix("nvidia_nccl_cu")?.strip_suffix(".dist-info")?.split_once('-')?;
    Some(format!("nvidia-nccl-cu{cuda} {release}"))
}

/// The folders of Python's packages: of `$PYTHONPATH`, of the first Python in `$PATH`, of
/// `$VIRTUAL_ENV` and `$CONDA_PREFIX`, of the user, and the usual ones.
fn python_folders(loader: DynamicLoader<'_>) -> Vec<PathBuf> {
    let list =
        |name| loader.var(name).unwrap_or_default().split(':').filter(|part| !part.is_empty());
    let mut folders: Vec<PathBuf> = list("PYTHONPATH").map(|part| loader.absolute(part)).collect();
    let has_python = |folder: &PathBuf| {
        ["python3", "python"].iter().any(|name| loader.root.exists(folder.join(name)))
    };
    let mut in_path = list("PATH").map(|part| loader.absolute(part)).filter(has_python);
    // The folder's own name counts: the programs of a virtual environment are links.
    let first = in_path.next().and_then(|folder| Some(folder.parent()?.to_owned()));
    let named = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(|name| loader.var(name))
        .map(PathBuf::from);
    let home = loader.var("HOME").map(|home| Path::new(home).join(".local"));
    let usual = ["/usr/local", "/usr", "/opt/conda"].map(PathBuf::from);
    for prefix in first.into_iter().chain(named).chain(home).chain(usual) {
        for lib in ["lib", "lib64"].map(|lib| prefix.join(lib)) {
            for python in loader.root.names(&lib).iter().filter(|name| name.starts_with("python3"))
            {
                folders.extend(
                    ["site-packages", "dist-packages"]
                        .map(|packages| lib.join(python).join(packages)),
                );
            }
        }
    }
    folders
}

/// The version in the text `NCCL version 2.21.5` of the library.
fn version(file: &Path) -> Option<Version> {
    const MARK: &[u8] = b"NCCL version ";
    let bytes = std::fs::read(file).ok()?;
    let mut starts = bytes.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    starts.find_map(|(at, _)| {
        let text = &bytes[at + MARK.len()..(at + MARK.len() + 16).min(bytes.len())];
        let text = String::from_utf8_lossy(text);
        let mut parts =
            text.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
        Some((parts.next()?, parts.next()?, parts.next()?))
    })
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
        assert_eq!(
            [since((2, 20)), since((2, 23)), since((2, 25))],
            [Some((2, 20)), Some((2, 21)), Some((2, 24))]
        );
        assert_eq!(
            [since((2, 29)), since((2, 32)), since((3, 0))],
            [Some((2, 28)), Some((2, 30)), Some((2, 30))]
        );
    }
}
