//! The files of all processes in a folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::end::End;
use super::stats_file::StatsFile;
use nccl_net::inspect::stats::layout::FILE_PREFIX;

/// All processes at a moment.
#[derive(Debug)]
pub(crate) struct Processes {
    /// When they were looked at.
    pub(crate) at: Instant,
    /// The living ones, by file.
    pub(crate) living: BTreeMap<PathBuf, Process>,
    /// The dead ones' files.
    pub(crate) dead: Vec<PathBuf>,
    /// Files that cannot be read, and why.
    pub(crate) unreadable: Vec<(PathBuf, String)>,
}

/// One process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Its header.
    pub(crate) file: StatsFile,
    /// Its ends, open and closed.
    pub(crate) ends: Vec<End>,
}

impl Processes {
    /// Reads the files of `folder`. One that vanishes meanwhile is none.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn read(folder: &Path) -> std::io::Result<Self> {
        let at = Instant::now();
        let (mut living, mut dead, mut unreadable) = (BTreeMap::new(), Vec::new(), Vec::new());
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FILE_PREFIX)) {
                continue;
            }
            match StatsFile::read(&path) {
                Ok(file) if file.is_alive => {
                    let ends = file.records().map(|(number, words)| End::new(number, words)).collect();
                    living.insert(path, Process { file, ends });
                }
                Ok(_) => dead.push(path),
                Err(_) if !path.exists() => {}
                Err(why) => unreadable.push((path, why)),
            }
        }
        dead.sort();
        unreadable.sort();
        Ok(Self { at, living, dead, unreadable })
    }

    /// The process whose end is asked for, and the end.
    pub(crate) fn end(&self, path: &Path, number: usize, generation: u64) -> Option<&End> {
        let ends = &self.living.get(path)?.ends;
        ends.iter().find(|end| end.number == number && end.generation == generation)
    }
}
