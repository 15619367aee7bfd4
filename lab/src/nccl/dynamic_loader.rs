//! Where the dynamic loader finds a shared object, and whether it can open it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::nccl::elf;
use crate::nccl::plugin_search::Opened;
use crate::system::root::Root;
use crate::system::suitability;

/// Folders that the dynamic loader searches without being told.
const DEFAULT: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];
/// Symbols of network plugins begin so.
const TABLE: &str = "ncclNetPlugin_v";

/// The loader of a process with this environment in the working directory `folder`, on the machine whose files are below `root`.
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

    /// The folders that it searches, in its order: those of `LD_LIBRARY_PATH`, of `/etc/ld.so.conf`, the default ones.
    fn folders(&self) -> Vec<PathBuf> {
        // An empty part stands for the working directory.
        let listed = self.var("LD_LIBRARY_PATH").map(|list| list.split([':', ';']).collect::<Vec<_>>());
        let mut folders: Vec<PathBuf> = listed.unwrap_or_default().iter().map(|part| self.absolute(part)).collect();
        let more =
            self.root.names("/etc/ld.so.conf.d").into_iter().map(|name| Path::new("/etc/ld.so.conf.d").join(name));
        let configured = [PathBuf::from("/etc/ld.so.conf")].into_iter().chain(more);
        for text in configured.filter_map(|path| self.root.text(path)) {
            folders.extend(text.lines().map(str::trim).filter(|line| line.starts_with('/')).map(PathBuf::from));
        }
        let of_processor = ["/lib", "/usr/lib"].map(|folder| format!("{folder}/{}-linux-gnu", std::env::consts::ARCH));
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
            match suitability::obstacle(&file) {
                // It looks on where a file is for another processor, and there alone.
                Ok(Some(why)) if suitability::is_for_another_processor(&file) => refused = Opened::Refused(path, why),
                Ok(Some(why)) => return Opened::Refused(path, why),
                _ => return opened(path, &file),
            }
        }
        refused
    }
}

fn opened(path: PathBuf, file: &Path) -> Opened {
    match elf::exports(file, TABLE) {
        Err(problem) => Opened::Refused(path, format!("it cannot be loaded: {problem}")),
        Ok(tables) => {
            let mut versions: Vec<u32> = tables.iter().filter_map(|name| name[TABLE.len()..].parse().ok()).collect();
            versions.sort_unstable();
            Opened::Tables(path, versions)
        }
    }
}
