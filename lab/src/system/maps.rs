//! What is mapped into this process: the evidence for which file some code came from.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// One line of `/proc/self/maps` that has a file behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    start: u64,
    end: u64,
    inode: u64,
    /// The file, as the kernel names it.
    pub path: PathBuf,
}

/// The file mappings of this process, at one moment.
#[derive(Debug)]
pub struct Maps(Vec<Mapping>);

impl Maps {
    /// Reads them now.
    ///
    /// # Errors
    /// [`Error::Io`] if `/proc` is not mounted.
    pub fn read() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/self/maps")
            .map_err(|source| Error::io("cannot read /proc/self/maps", source))?;
        Ok(Self(text.lines().filter_map(parse_line).collect()))
    }

    /// The mapping that holds `address`, if a file is behind it.
    pub fn at(&self, address: usize) -> Option<&Mapping> {
        let address = address as u64;
        self.0.iter().find(|m| m.start <= address && address < m.end)
    }

    /// Whether `address` lies in a mapping of the file at `path` (the same inode, whatever the
    /// name).
    pub fn is_in(&self, address: usize, path: &Path) -> bool {
        self.at(address).is_some_and(|mapping| mapping.is(path))
    }

    /// The distinct mapped files whose name starts with `prefix`.
    pub fn files_named(&self, prefix: &str) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self
            .0
            .iter()
            .filter(|m| m.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
            .map(|m| m.path.clone())
            .collect();
        files.sort();
        files.dedup();
        files
    }
}

/// The addresses that are mapped in this process, from files or not.
///
/// # Errors
/// [`Error::Io`] if `/proc` is not mounted.
pub fn ranges() -> Result<Vec<std::ops::Range<usize>>> {
    let text = std::fs::read_to_string("/proc/self/maps")
        .map_err(|source| Error::io("cannot read /proc/self/maps", source))?;
    let range = |line: &str| {
        let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
        Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    Ok(text.lines().filter_map(range).collect())
}

impl Mapping {
    /// Whether the file behind the mapping is the one at `path`.
    pub fn is(&self, path: &Path) -> bool {
        std::fs::metadata(path).is_ok_and(|meta| meta.ino() == self.inode) && path.file_name().is_some()
    }
}

/// `start-end perms offset major:minor inode path`
fn parse_line(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let inode = words.nth(3)?.parse().ok()?;
    let path = line.get(line.find('/')?..)?;
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        inode,
        path: PathBuf::from(path),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_a_file() {
        let mapping =
            parse_line("7f00aa000000-7f00aa021000 r-xp 00001000 fe:01 4242                       /usr/lib/a b.so");
        assert_eq!(
            mapping,
            Some(Mapping {
                start: 0x7f00_aa00_0000,
                end: 0x7f00_aa02_1000,
                inode: 4242,
                path: "/usr/lib/a b.so".into()
            })
        );
        assert_eq!(parse_line("7f00aa000000-7f00aa021000 rw-p 00000000 00:00 0 "), None);
    }

    #[test]
    fn this_very_function_is_in_this_very_file() -> Result<()> {
        let maps = Maps::read()?;
        let here = a_line_with_a_file as *const () as usize;
        let exe = std::env::current_exe().map_err(|e| Error::io("current_exe", e))?;
        assert!(maps.is_in(here, &exe));
        assert!(!maps.is_in(here, Path::new("/bin/sh")));
        assert!(!maps.files_named("libc.so").is_empty());
        Ok(())
    }
}
