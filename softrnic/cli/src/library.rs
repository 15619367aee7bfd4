//! Which library a program gets, and where it is.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::flavour::{missing_version, wants_tools};
use crate::variable::variable;

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
        let whole = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
        if !has_library(&whole) {
            return Err(format!("{}: no libibverbs.so.1 in it", folder.display()));
        }
        let library = Self(whole);
        match program.and_then(|program| Some((program, missing_version(program, &library.path())?))) {
            None => Ok(library),
            Some((program, version)) => {
                let (program, folder) = (program.to_string_lossy(), folder.display());
                Err(format!("{program} needs {version}, which the library in {folder} has not; see --tools"))
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
        let wanted =
            program.and_then(|program| Some((program.to_string_lossy(), wants_tools(program, &plain.path())?)));
        let Some((program, version)) = wanted else { return Ok(plain) };
        let tools = Self::tools().map_err(|what| format!("{program} needs {version}, but there is {what}"))?;
        if variable("SOFTRNIC_QUIET").is_none_or(|value| value == "0") {
            eprintln!("softrnic: {program} needs {version}, so it is run as with --tools");
        }
        Ok(tools)
    }

    /// A flavour that is installed beside this program.
    fn installed(flavour: &str) -> Result<Self, String> {
        let exe = std::env::current_exe().and_then(|exe| exe.canonicalize());
        let exe = exe.map_err(|error| format!("cannot tell where this program is: {error}"))?;
        let folder = exe.ancestors().nth(2).map(|root| root.join(flavour)).filter(|folder| has_library(folder));
        folder.map(Self).ok_or_else(|| {
            format!("no ../{flavour}/libibverbs.so.1 beside {}; name its folder with --library", exe.display())
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

fn has_library(folder: &Path) -> bool {
    folder.join("libibverbs.so.1").exists()
}
