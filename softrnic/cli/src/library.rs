//! The flavours of the library that are installed, and which of them a program needs.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::find::variable;

/// Versions of the symbols that only the flavour `tools` has begin so.
const PRIVATE: &str = "IBVERBS_PRIVATE_";

/// Connections by IP addresses: the library that has them, which the flavour `tools` stands for.
const CONNECTIONS: &str = "librdmacm.so.1";

/// What `program` is linked with that only the flavour `tools` has, or `None`, as for
/// [`missing_version`].
pub(crate) fn wants_tools(program: &OsStr, library_path: &OsStr) -> Option<String> {
    let said = listing(program, library_path)?;
    let is_linked = said.iter().any(|said| said.contains(CONNECTIONS));
    said.iter()
        .find_map(|said| private_version(said))
        .or_else(|| is_linked.then(|| CONNECTIONS.to_owned()))
}

/// The private version that `program` would not find with the libraries on `library_path`, or
/// `None`: it finds all, or it is nothing that a loader can list, such as a script.
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
    let mut name =
        vec![0; usize::try_from(word(&found, 32)).ok().filter(|length| *length <= 4096)?];
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

/// The flavour for NCCL and for programs that need no more than the public symbols.
const PLAIN: &str = "softrnic";
/// The flavour for RDMA tools.
const TOOLS: &str = "softrnic-tools";

/// The folder of a flavour of the library.
#[derive(Debug)]
pub(crate) struct Library(PathBuf);

impl Library {
    /// The one in `folder`, which must have what `program` needs.
    pub(crate) fn named(folder: &Path, program: Option<&OsStr>) -> Result<Self, String> {
        let whole =
            folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
        if !has_library(&whole) {
            return Err(format!("{}: no libibverbs.so.1 in it", folder.display()));
        }
        let library = Self(whole);
        match program
            .and_then(|program| Some((program, missing_version(program, &library.path())?)))
        {
            None => Ok(library),
            Some((program, version)) => {
                let (program, folder) = (program.to_string_lossy(), folder.display());
                Err(format!(
                    "{program} needs {version}, which the library in {folder} has not; see --tools"
                ))
            }
        }
    }

    /// That for RDMA tools.
    pub(crate) fn tools() -> Result<Self, String> {
        Self::installed(TOOLS)
    }

    /// The one that `program` needs, if it is known.
    pub(crate) fn of(program: Option<&OsStr>) -> Result<Self, String> {
        let plain = Self::installed(PLAIN)?;
        let wanted = program.and_then(|program| {
            Some((program.to_string_lossy(), wants_tools(program, &plain.path())?))
        });
        let Some((program, version)) = wanted else { return Ok(plain) };
        let tools = Self::tools()
            .map_err(|what| format!("{program} needs {version}, but there is {what}"))?;
        if variable("SOFTRNIC_QUIET").is_none_or(|value| value == "0") {
            eprintln!("softrnic: {program} needs {version}, so it is run as with --tools");
        }
        Ok(tools)
    }

    /// A flavour that is installed beside this program.
    fn installed(flavour: &str) -> Result<Self, String> {
        let exe = this_program()?;
        let folder = beside(&exe, flavour).filter(|folder| has_library(folder));
        folder.map(Self).ok_or_else(|| {
            format!(
                "no ../{flavour}/libibverbs.so.1 beside {}; name its folder with --library",
                exe.display()
            )
        })
    }

    /// For the loader: its folder, then what is there already.
    pub(crate) fn path(&self) -> OsString {
        let mut path = self.0.as_os_str().to_owned();
        if let Some(old) = variable("LD_LIBRARY_PATH") {
            path.push(":");
            path.push(old);
        }
        path
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("libibverbs.so.1")
    }
}

/// Where this program is.
pub(crate) fn this_program() -> Result<PathBuf, String> {
    let exe = std::env::current_exe().and_then(|exe| exe.canonicalize());
    exe.map_err(|error| format!("cannot tell where this program is: {error}"))
}

/// The folder of that name beside the program's.
pub(crate) fn beside(program: &Path, folder: &str) -> Option<PathBuf> {
    program.ancestors().nth(2).map(|root| root.join(folder))
}

fn has_library(folder: &Path) -> bool {
    folder.join("libibverbs.so.1").exists()
}
