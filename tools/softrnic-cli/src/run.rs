//! Runs a program on the software device: sets the environment, and becomes the program.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::clean::{RUN, forget_old_runs};
use crate::faithful;
use crate::find::{named, to_look_at};
use crate::flavour::{missing_version, wants_tools};
use crate::outcome::Failure;
use crate::variable::variable;

/// Runs a program on the software device. What it starts takes part as well.
///
/// The options come before the program. The exit status is the program's; 2 if it cannot be run.
#[derive(Debug, Args)]
#[command(override_usage = "softrnic run [OPTIONS] [--] PROGRAM [ARGUMENTS]...", arg_required_else_help = true)]
pub(crate) struct Options {
    /// Number of devices, 1 to 8
    #[arg(long, value_name = "N")]
    devices: Option<String>,
    /// Ports of each device, 1 or 2
    #[arg(long, value_name = "N")]
    ports: Option<String>,
    /// Whose devices they are to be like: bnxt_re, efa, erdma, hns, ionic, irdma, mana or mlx5
    #[arg(long, value_name = "NAME")]
    driver: Option<String>,
    /// roce, ib or unspecified; with exceptions: roce,softrnic1/1=ib
    #[arg(long)]
    link: Option<String>,
    /// GID tables: plain or rich
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
    /// Write memory with relaxed ordering in no order
    #[arg(long)]
    chaos: bool,
    /// Write the last word of each line of 128 bytes after all that precedes it; costs bandwidth
    #[arg(long)]
    lines: bool,
    /// Stage all copies, as where processes may not look into each other
    #[arg(long)]
    staged: bool,
    /// Junk where nothing is defined, and data read late
    #[arg(long)]
    strict: bool,
    /// Factor for all modelled waits
    #[arg(long, value_name = "X")]
    time_scale: Option<String>,
    /// Use the flavour of the library that RDMA tools need. It is used by itself for a program that is linked with RDMA
    /// drivers; scripts that load such libraries later, as pyverbs does, have to ask for it
    #[arg(long)]
    tools: bool,
    /// Folder with libibverbs.so.1, if it is not the one beside this program
    #[arg(long, value_name = "DIR", conflicts_with = "tools")]
    library: Option<PathBuf>,
    /// Show the devices in /sys/class/infiniband as well, in a private mount namespace
    #[arg(long)]
    faithful: bool,
    #[command(flatten)]
    pci: faithful::PciPlaces,
    /// Say what is set
    #[arg(short, long)]
    verbose: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Returns only if there is nothing to run.
pub(crate) fn run(options: &Options, fabric: Option<&str>) -> Failure {
    match prepare(options, fabric) {
        Err(what) => Failure::Refused(what),
        Ok(()) => {
            let error = Command::new(&options.command[0]).args(&options.command[1..]).exec();
            Failure::Refused(format!("cannot run {}: {error}", options.command[0].to_string_lossy()))
        }
    }
}

fn prepare(options: &Options, fabric: Option<&str>) -> Result<(), String> {
    forget_old_runs();
    let settings = environment(options, fabric)?;
    for (name, value) in &settings {
        if options.verbose {
            eprintln!("softrnic: {name}={}", value.to_string_lossy());
        }
        // SAFETY: this program has one thread.
        unsafe { std::env::set_var(name, value) };
    }
    let planned = ibverbs::control::planned()?;
    if options.faithful {
        // Others may use the fabric already, and have decided what its devices are like.
        let devices = to_look_at(fabric).map_or(planned, |network| network.report().devices);
        let has_peermem = matches!(variable("SOFTRNIC_GPU").as_deref(), Some("peermem" | "both"));
        faithful::enter(&devices, &options.pci, has_peermem, options.verbose)?;
    }
    Ok(())
}

/// Variables and their values, in the order in which they are printed.
fn environment(options: &Options, fabric: Option<&str>) -> Result<Vec<(&'static str, OsString)>, String> {
    let dir = library_dir(options)?;
    let mut set =
        vec![("LD_LIBRARY_PATH", library_path(&dir)), ("NCCL_IBVERBS_LIB", dir.join("libibverbs.so.1").into())];
    set.push(("SOFTRNIC_FABRIC", named(fabric).unwrap_or_else(fresh_name).into()));
    let given = [
        ("SOFTRNIC_DEVICES", &options.devices),
        ("SOFTRNIC_PORTS", &options.ports),
        ("SOFTRNIC_DRIVER", &options.driver),
        ("SOFTRNIC_LINK", &options.link),
        ("SOFTRNIC_GIDS", &options.gids),
        ("SOFTRNIC_SPEED", &options.speed),
        ("SOFTRNIC_MTU", &options.mtu),
        ("SOFTRNIC_FAULTS", &options.faults),
        ("SOFTRNIC_SEED", &options.seed),
        ("SOFTRNIC_TRACE", &options.trace),
        ("SOFTRNIC_GPU", &options.gpu),
        ("SOFTRNIC_TIME_SCALE", &options.time_scale),
    ];
    set.extend(given.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?.into()))));
    let switches = [
        ("SOFTRNIC_STRICT", options.strict, "1"),
        ("SOFTRNIC_CHAOS", options.chaos, "1"),
        ("SOFTRNIC_LINES", options.lines, "1"),
        ("SOFTRNIC_STAGED", options.staged, "1"),
        ("SOFTRNIC_CARD", options.pci.same_card, "2"),
        // NCCL 2.28.7 to 2.28.9 crash in their look for an mlx5 device where every device is of another kind.
        ("NCCL_GIN_TYPE", variable("NCCL_GIN_TYPE").is_none(), "0"),
    ];
    set.extend(switches.into_iter().filter(|(_, is_on, _)| *is_on).map(|(name, _, value)| (name, value.into())));
    Ok(set)
}

/// A name that no other run has, in another process id namespace either.
fn fresh_name() -> String {
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id());
    format!("{RUN}{}-{:08x}", std::process::id(), random as u32)
}

/// `dir`, then what is there already.
fn library_path(dir: &Path) -> OsString {
    let mut path = dir.as_os_str().to_owned();
    if let Some(old) = variable("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(old);
    }
    path
}

/// The folder of the library that the program needs.
fn library_dir(options: &Options) -> Result<PathBuf, String> {
    let missing = |dir: &Path| missing_version(&options.command[0], &library_path(dir));
    let program = options.command[0].to_string_lossy();
    if let Some(dir) = &options.library {
        let whole = dir.canonicalize().map_err(|error| format!("{}: {error}", dir.display()))?;
        if !has_library(&whole) {
            return Err(format!("{}: no libibverbs.so.1 in it", dir.display()));
        }
        return missing(&whole).map_or(Ok(whole), |version| {
            Err(format!("{program} needs {version}, which the library in {} has not; see --tools", dir.display()))
        });
    }
    if options.tools {
        return installed_dir(TOOLS);
    }
    let plain = installed_dir("softrnic")?;
    let Some(version) = wants_tools(&options.command[0], &library_path(&plain)) else { return Ok(plain) };
    let tools = installed_dir(TOOLS).map_err(|what| format!("{program} needs {version}, but there is {what}"))?;
    if variable("SOFTRNIC_QUIET").is_none_or(|value| value == "0") {
        eprintln!("softrnic: {program} needs {version}, so it is run as with --tools");
    }
    Ok(tools)
}

/// The flavour for RDMA tools.
const TOOLS: &str = "softrnic-tools";

/// The folder of a flavour of the library, which is installed beside this program's.
fn installed_dir(flavour: &str) -> Result<PathBuf, String> {
    let exe = std::env::current_exe().and_then(|exe| exe.canonicalize());
    let exe = exe.map_err(|error| format!("cannot tell where this program is: {error}"))?;
    let dir = exe.ancestors().nth(2).map(|root| root.join(flavour)).filter(|dir| has_library(dir));
    dir.ok_or_else(|| {
        format!("no ../{flavour}/libibverbs.so.1 beside {}; name its folder with --library", exe.display())
    })
}

fn has_library(dir: &Path) -> bool {
    dir.join("libibverbs.so.1").exists()
}
