//! Prints the environment in which programs use the device.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use serde_json::{Map, Value};

use crate::find::{Failure, RUN, named, print};
use crate::provider::Provider;

/// Prints the environment in which programs use the device, for a shell: eval "$(softrnic env)"
///
/// What is started with it takes part in one fabric, as below `softrnic run`. Which programs these
/// are is not known, so those that load RDMA drivers or librdmacm have to be thought of: --tools.
/// If something is wrong, nothing is printed for the shell, and `eval` of nothing succeeds: a
/// script that is to stop there says settings=$(softrnic env) before eval "$settings".
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// One JSON object, of names and values
    #[arg(long)]
    json: bool,
    /// Lines NAME=value without quotes, as the file has them that docker takes by --env-file, and
    /// that of GITHUB_ENV
    #[arg(long, conflicts_with = "json")]
    env_file: bool,
    #[command(flatten)]
    settings: Settings,
}

impl Options {
    pub(crate) fn show(&self, fabric: Option<&str>) -> Result<(), Failure> {
        let text = self.text(fabric).map_err(Failure::Refused)?;
        print(&text)
    }

    fn text(&self, fabric: Option<&str>) -> Result<String, String> {
        let set = self.settings.variables(fabric, None, None)?;
        for (name, value) in &set {
            // SAFETY: this program has one thread.
            unsafe { std::env::set_var(name, value) };
        }
        // Whether there can be such a device.
        ibverbs::control::planned()?;
        let set = set.into_iter().map(|(name, value)| Ok((name, utf8(name, value)?)));
        let set: Vec<_> = set.collect::<Result<_, String>>()?;
        if self.json {
            let object =
                set.into_iter().map(|(name, value)| (name.to_owned(), Value::String(value)));
            return Ok(format!("{:#}\n", Value::Object(object.collect::<Map<_, _>>())));
        }
        set.iter()
            .map(
                |(name, value)| {
                    if self.env_file { line(name, value) } else { Ok(export(name, value)) }
                },
            )
            .collect()
    }
}

fn utf8(name: &str, value: OsString) -> Result<String, String> {
    value
        .into_string()
        .map_err(|value| format!("{name}={}: must be UTF-8", value.to_string_lossy()))
}

/// For any shell of POSIX.
fn export(name: &str, value: &str) -> String {
    format!("export {name}='{}'\n", value.replace('\'', r"'\''"))
}

fn line(name: &str, value: &str) -> Result<String, String> {
    if value.contains('\n') {
        return Err(format!(
            "{name} has several lines, which such a file cannot have: without --env-file"
        ));
    }
    Ok(format!("{name}={value}\n"))
}

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

#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// Number of devices, 1 to 8
    #[arg(long, value_name = "N")]
    devices: Option<String>,
    /// Ports of each device, 1 or 2
    #[arg(long, value_name = "N")]
    ports: Option<String>,
    /// Driver whose devices they imitate: bnxt_re, efa, erdma, hns, ionic, irdma, mana, mlx5, rxe,
    /// or a generation of mlx5: mlx5-cx4, mlx5-cx5, mlx5-cx6, mlx5-cx6dx, mlx5-cx7 or mlx5-cx8
    #[arg(long, value_name = "NAME")]
    driver: Option<String>,
    /// roce, ib or unspecified; with exceptions: roce,softrnic1/1=ib
    #[arg(long)]
    link: Option<String>,
    /// GID tables: plain, rich or vlan
    #[arg(long)]
    gids: Option<String>,
    /// In Gb/s; with exceptions: 400,softrnic1/2=100
    #[arg(long, value_name = "GBPS")]
    speed: Option<String>,
    /// In bytes; with exceptions
    #[arg(long)]
    mtu: Option<String>,
    /// Fault rules, or @FILE
    #[arg(long, value_name = "RULES")]
    faults: Option<String>,
    /// Seed of all random decisions
    #[arg(long)]
    seed: Option<String>,
    /// File for a list of the faults as they are applied
    #[arg(long, value_name = "FILE")]
    trace: Option<String>,
    /// How GPU memory can be registered: none, peermem, dmabuf or both
    #[arg(long)]
    gpu: Option<String>,
    /// Copy GPU memory in a process of its own, which does not wait while the application holds the
    /// CUDA driver
    #[arg(long)]
    gpu_helper: bool,
    /// Write memory with relaxed ordering in no order
    #[arg(long)]
    chaos: bool,
    /// Write the last word of each line of 128 bytes after all that precedes it; costs bandwidth
    #[arg(long)]
    lines: bool,
    /// Stage all copies, as where processes may not look into each other
    #[arg(long)]
    staged: bool,
    /// Undefined memory holds arbitrary bytes, and data is read late
    #[arg(long)]
    strict: bool,
    /// Factor for all modelled waits
    #[arg(long, value_name = "X")]
    time_scale: Option<String>,
    /// Use the flavour of the library that RDMA tools need. `run` does so by itself for a program
    /// that is linked with RDMA drivers; for scripts that load such libraries later, as pyverbs
    /// does, and by `env` it has to be asked for
    #[arg(long)]
    tools: bool,
    /// Folder with libibverbs.so.1, if it is not the one beside this program
    #[arg(long, value_name = "DIR", conflicts_with = "tools")]
    library: Option<PathBuf>,
}

impl Settings {
    /// The variables that a program needs, `program` if it is known, and their values, in the order
    /// in which they are printed.
    pub(crate) fn variables(
        &self,
        fabric: Option<&str>,
        program: Option<&OsStr>,
        provider: Option<Provider>,
    ) -> Result<Vec<(&'static str, OsString)>, String> {
        let library = || match &self.library {
            Some(folder) => Library::named(folder, program),
            None if self.tools => Library::tools(),
            None => Library::of(program),
        };
        let mut set = match provider {
            Some(provider) => provider.variables()?,
            None => {
                let library = library()?;
                let file = library.file().into();
                vec![("LD_LIBRARY_PATH", library.path()), ("NCCL_IBVERBS_LIB", file)]
            }
        };
        set.push(("SOFTRNIC_FABRIC", named(fabric).unwrap_or_else(fresh_name).into()));
        let given = [
            ("SOFTRNIC_DEVICES", &self.devices),
            ("SOFTRNIC_PORTS", &self.ports),
            ("SOFTRNIC_DRIVER", &self.driver),
            ("SOFTRNIC_LINK", &self.link),
            ("SOFTRNIC_GIDS", &self.gids),
            ("SOFTRNIC_SPEED", &self.speed),
            ("SOFTRNIC_MTU", &self.mtu),
            ("SOFTRNIC_FAULTS", &self.faults),
            ("SOFTRNIC_SEED", &self.seed),
            ("SOFTRNIC_TRACE", &self.trace),
            ("SOFTRNIC_GPU", &self.gpu),
            ("SOFTRNIC_TIME_SCALE", &self.time_scale),
        ];
        set.extend(
            given.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?.into()))),
        );
        if self.gpu_helper {
            let program = std::env::current_exe()
                .map_err(|e| format!("--gpu-helper: this program cannot be found: {e}"))?;
            set.push(("SOFTRNIC_GPU_HELPER", program.into()));
        }
        let switches = [
            ("SOFTRNIC_STRICT", self.strict, "1"),
            ("SOFTRNIC_CHAOS", self.chaos, "1"),
            ("SOFTRNIC_LINES", self.lines, "1"),
            ("SOFTRNIC_STAGED", self.staged, "1"),
            // NCCL 2.28.7 to 2.28.9 crash in their look for an mlx5 device where every device is of
            // another kind.
            ("NCCL_GIN_TYPE", variable("NCCL_GIN_TYPE").is_none(), "0"),
        ];
        set.extend(
            switches
                .into_iter()
                .filter(|(_, is_on, _)| *is_on)
                .map(|(name, _, value)| (name, value.into())),
        );
        Ok(set)
    }
}

/// A name that no other run has, in another process id namespace either.
fn fresh_name() -> String {
    let random =
        std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id());
    format!("{RUN}{}-{:08x}", std::process::id(), random as u32)
}

/// A variable of the environment that is not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{export, line};

    #[test]
    fn values_are_quoted_for_a_shell() {
        assert_eq!(export("A", "it's $HOME"), "export A='it'\\''s $HOME'\n");
    }

    #[test]
    fn a_value_of_two_lines_is_none_for_a_file() {
        assert_eq!(line("A", "b c").as_deref(), Ok("A=b c\n"));
        assert!(line("A", "b\nc").is_err());
    }
}
