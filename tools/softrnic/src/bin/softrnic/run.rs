//! Runs a program on the software device: sets the environment, and becomes the program.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::{faithful, find, variable};

/// Runs a program on the software device. What it starts takes part as well.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Number of devices, 1 to 8
    #[arg(long, value_name = "N")]
    devices: Option<String>,
    /// Ports of each device, 1 or 2
    #[arg(long, value_name = "N")]
    ports: Option<String>,
    /// roce or ib; with exceptions: roce,softrnic1/1=ib
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
    /// File to write down the faults that strike
    #[arg(long, value_name = "FILE")]
    trace: Option<String>,
    /// How GPU memory can be registered: none, peermem, dmabuf or both
    #[arg(long)]
    gpu: Option<String>,
    /// Write memory with relaxed ordering in no order
    #[arg(long)]
    chaos: bool,
    /// Stage all copies, as where processes may not look into each other
    #[arg(long)]
    staged: bool,
    /// Junk where nothing is defined, and data read late
    #[arg(long)]
    strict: bool,
    /// Factor for all modelled waits
    #[arg(long, value_name = "X")]
    time_scale: Option<String>,
    /// Use the flavour of the library that RDMA tools need
    #[arg(long)]
    tools: bool,
    /// Folder with libibverbs.so.1, if it is not the one beside this program
    #[arg(long, value_name = "DIR", conflicts_with = "tools")]
    library: Option<PathBuf>,
    /// Show the devices in /sys/class/infiniband as well, in a private mount namespace
    #[arg(long)]
    faithful: bool,
    #[command(flatten)]
    pci: faithful::Places,
    /// Say what is set
    #[arg(short, long)]
    verbose: bool,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(options: &Options, fabric: Option<&str>) -> Result<(), String> {
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
        let devices = find(fabric).map_or(planned, |network| network.report().devices);
        let has_peermem = matches!(variable("SOFTRNIC_GPU").as_deref(), Some("peermem" | "both"));
        faithful::enter(&devices, &options.pci, has_peermem, options.verbose)?;
    }
    let error = Command::new(&options.command[0]).args(&options.command[1..]).exec();
    Err(format!("cannot run {}: {error}", options.command[0].to_string_lossy()))
}

/// Variables and their values, in the order in which they are told.
fn environment(options: &Options, fabric: Option<&str>) -> Result<Vec<(&'static str, OsString)>, String> {
    let dir = library_dir(options)?;
    let mut path = dir.clone().into_os_string();
    if let Some(old) = variable("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(old);
    }
    let mut set = vec![("LD_LIBRARY_PATH", path), ("NCCL_IBVERBS_LIB", dir.join("libibverbs.so.1").into())];
    let fresh = || variable("SOFTRNIC_FABRIC").unwrap_or_else(|| format!("softrnic-run-{}", std::process::id()));
    set.push(("SOFTRNIC_FABRIC", fabric.map_or_else(fresh, str::to_owned).into()));
    let given = [
        ("SOFTRNIC_DEVICES", &options.devices),
        ("SOFTRNIC_PORTS", &options.ports),
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
        ("SOFTRNIC_STAGED", options.staged, "1"),
        ("SOFTRNIC_CARD", options.pci.same_card, "2"),
        // NCCL 2.28.7 to 2.28.9 crash in their look for an mlx5 device where every device is of another kind.
        ("NCCL_GIN_TYPE", variable("NCCL_GIN_TYPE").is_none(), "0"),
    ];
    set.extend(switches.into_iter().filter(|(_, is_on, _)| *is_on).map(|(name, _, value)| (name, value.into())));
    Ok(set)
}

/// The folder of the library, which is installed beside this program's.
fn library_dir(options: &Options) -> Result<PathBuf, String> {
    if let Some(dir) = &options.library {
        let whole = dir.canonicalize().map_err(|error| format!("{}: {error}", dir.display()))?;
        return has_library(&whole)
            .then_some(whole)
            .ok_or_else(|| format!("{}: no libibverbs.so.1 in it", dir.display()));
    }
    let flavour = if options.tools { "softrnic-tools" } else { "softrnic" };
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
