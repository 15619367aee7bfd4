//! Which flavour of the library a program needs: drivers, and programs that are linked with them, want private symbols.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Versions of the symbols that only the flavour `tools` has begin so.
const PRIVATE: &str = "IBVERBS_PRIVATE_";

/// Connections by IP addresses: the library that has them, which the flavour `tools` stands for.
const CONNECTIONS: &str = "librdmacm.so.1";

/// What `program` is linked with that only the flavour `tools` has, or `None`, as for [`missing_version`].
pub(crate) fn wants_tools(program: &OsStr, library_path: &OsStr) -> Option<String> {
    let said = listing(program, library_path)?;
    let is_linked = said.iter().any(|said| said.contains(CONNECTIONS));
    said.iter().find_map(|said| private_version(said)).or_else(|| is_linked.then(|| CONNECTIONS.to_owned()))
}

/// The private version that `program` would not find with the libraries on `library_path`, or `None`: it finds all, or it
/// is nothing that a loader can list, such as a script.
pub(crate) fn missing_version(program: &OsStr, library_path: &OsStr) -> Option<String> {
    listing(program, library_path)?.iter().find_map(|said| private_version(said))
}

/// The libraries of `program` and what is wrong with them, as a loader says it.
fn listing(program: &OsStr, library_path: &OsStr) -> Option<[String; 2]> {
    let program = resolve(program)?;
    let loader = loader_of(&program).filter(|loader| is_known(loader))?;
    // This runs nothing.
    let mut listing = Command::new(loader);
    listing.arg("--list").arg(&program).env("LD_LIBRARY_PATH", library_path).stdin(Stdio::null());
    let output = listing.output().ok()?;
    Some([output.stderr, output.stdout].map(|said| String::from_utf8_lossy(&said).into_owned()))
}

/// The file that a shell would run.
fn resolve(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Loaders that take `--list`.
fn is_known(loader: &Path) -> bool {
    let name = loader.file_name().map(OsStr::as_bytes).unwrap_or_default();
    [&b"ld-linux"[..], b"ld-musl", b"ld64."].iter().any(|known| name.starts_with(known))
}

/// The program interpreter of a 64-bit ELF file of this machine's byte order.
fn loader_of(program: &Path) -> Option<PathBuf> {
    const INTERPRETER: u32 = 3;
    let file = File::open(program).ok()?;
    let header: [u8; 64] = read(&file, 0)?;
    let order = if cfg!(target_endian = "little") { 1 } else { 2 };
    if header[..6] != [0x7f, b'E', b'L', b'F', 2, order] {
        return None;
    }
    let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let table = word(&header, 32);
    let (size, count) = (u64::from(half(54)), u64::from(half(56)));
    let entries = (0..count).map_while(|index| read::<56>(&file, table.checked_add(index * size)?));
    let found = entries.into_iter().find(|entry| entry[..4] == INTERPRETER.to_ne_bytes())?;
    let mut name = vec![0; usize::try_from(word(&found, 32)).ok().filter(|length| *length <= 4096)?];
    file.read_exact_at(&mut name, word(&found, 8)).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(name.split(|byte| *byte == 0).next()?)))
}

fn read<const N: usize>(file: &File, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

/// Eight bytes as a number, in this machine's order.
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// The first private version that is named in what a loader has said.
fn private_version(said: &str) -> Option<String> {
    let at = said.find(PRIVATE)?;
    let digits = said[at + PRIVATE.len()..].chars().take_while(char::is_ascii_alphanumeric);
    Some(PRIVATE.chars().chain(digits).collect())
}
