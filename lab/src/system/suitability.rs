//! Whether this machine's loader takes a file: its processor, and the glibc that it was linked for.

use std::ffi::CStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};

/// `e_machine` of the ELF header: what this program is for.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Why the file at `path` cannot be loaded here, with what helps; `None` if nothing is known to be in the way.
///
/// # Errors
/// [`Error::Io`] if it cannot be read.
pub fn obstacle(path: &Path) -> Result<Option<String>> {
    let bytes = std::fs::read(path).map_err(|source| Error::io(format!("cannot read {}", path.display()), source))?;
    Ok(obstacle_in(&bytes, glibc_here()))
}

/// Whether the file at `path` is an ELF file for another processor.
pub fn is_for_another_processor(path: &Path) -> bool {
    let mut head = [0; 20];
    let is_read = File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_ok();
    is_read && elf_machine(&head).is_some_and(|machine| machine != MACHINE)
}

/// `None`: it is no ELF file.
fn elf_machine(bytes: &[u8]) -> Option<u16> {
    let word = bytes.get(18..20).filter(|_| bytes.starts_with(b"\x7fELF"))?;
    Some(u16::from_le_bytes([word[0], word[1]]))
}

fn obstacle_in(bytes: &[u8], here: Option<(u32, u32)>) -> Option<String> {
    let machine = elf_machine(bytes)?;
    if machine != MACHINE {
        let this = std::env::consts::ARCH;
        return Some(format!("it is for another processor (ELF machine {machine}): install the package for {this}"));
    }
    let (needed, here) = (glibc_needed(bytes)?, here?);
    (needed > here).then(|| {
        let [needed, here] = [needed, here].map(|(major, minor)| format!("{major}.{minor}"));
        format!("it needs glibc {needed} and this system has {here}: install the released package, which needs 2.17")
    })
}

/// The highest version that the file asks for.
fn glibc_needed(bytes: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_";
    let starts = bytes.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    starts.filter_map(|(at, _)| version(&bytes[at + MARK.len()..])).max()
}

/// `2.34` at the beginning of `bytes`.
fn version(bytes: &[u8]) -> Option<(u32, u32)> {
    let end = bytes.iter().position(|byte| !(byte.is_ascii_digit() || *byte == b'.'))?;
    let (major, rest) = std::str::from_utf8(&bytes[..end]).ok()?.split_once('.')?;
    Some((major.parse().ok()?, rest.split('.').next()?.parse().ok()?))
}

fn glibc_here() -> Option<(u32, u32)> {
    // SAFETY: it returns a C string that lives as long as the process.
    let text = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    version(text.to_bytes_with_nul())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(machine: u16, text: &[u8]) -> Vec<u8> {
        [b"\x7fELF", &[0; 14][..], &machine.to_le_bytes(), text].concat()
    }

    #[test]
    fn the_highest_glibc_that_a_file_asks_for_is_what_it_needs() {
        let needs = file(MACHINE, b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0GLIBC_PRIVATE\0");
        assert_eq!(glibc_needed(&needs), Some((2, 34)));
        assert_eq!(obstacle_in(&needs, Some((2, 34))), None);
        let said = obstacle_in(&needs, Some((2, 9))).expect("too old");
        assert!(said.starts_with("it needs glibc 2.34 and this system has 2.9: install"), "{said}");
        assert!(glibc_here().is_some_and(|here| here >= (2, 17)));
    }

    #[test]
    fn a_file_for_another_processor_is_told() {
        let said = obstacle_in(&file(21, b"\0GLIBC_2.17\0"), Some((2, 34))).expect("another one");
        assert!(said.contains("another processor (ELF machine 21): install the package for "), "{said}");
        assert_eq!(obstacle_in(b"short", Some((2, 34))), None);
        assert_eq!(obstacle_in(b"a text that is longer than a header", Some((2, 34))), None, "no ELF file");
    }
}
