//! Runs a program on the software device: sets the environment, and becomes the program.

use std::ffi::OsString;
use std::io::stdin;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use ibverbs::control::gpu_helper::{Stage, serve};

use crate::env::Settings;
use crate::faithful;
use crate::find::{Failure, forget_old_runs, to_look_at, variable};
use crate::provider::{Front, Provider};

/// Runs a program, and the programs that it starts, on the software device.
///
/// The options come before the program. The exit status is the program's; 2 if it cannot be run.
#[derive(Debug, Args)]
#[command(
    override_usage = "softrnic run [OPTIONS] [--] PROGRAM [ARGUMENTS]...",
    arg_required_else_help = true
)]
pub(crate) struct Options {
    #[command(flatten)]
    settings: Settings,
    /// Show the devices in /sys/class/infiniband as well, in a private mount namespace
    #[arg(long)]
    faithful: bool,
    /// Run the program on the system's own libibverbs and this driver library of it, with softrnic
    /// as kernel and card. Implies --faithful
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pci", "tools", "library"])]
    provider: Option<Provider>,
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
            Failure::Refused(format!(
                "cannot run {}: {error}",
                options.command[0].to_string_lossy()
            ))
        }
    }
}

fn prepare(options: &Options, fabric: Option<&str>) -> Result<(), String> {
    forget_old_runs();
    let program = Some(options.command[0].as_os_str());
    let mut set = options.settings.variables(fabric, program, options.provider)?;
    if options.pci.same_card {
        set.push(("SOFTRNIC_CARD", "2".into()));
    }
    for (name, value) in &set {
        if options.verbose {
            eprintln!("softrnic: {name}={}", value.to_string_lossy());
        }
        // SAFETY: this program has one thread.
        unsafe { std::env::set_var(name, value) };
    }
    let planned = ibverbs::control::planned()?;
    let front = options.provider.map(Front::planned).transpose()?;
    if options.faithful || front.is_some() {
        // Others may use the fabric already, and have decided what its devices are like.
        let devices = to_look_at(fabric).map_or(planned, |network| network.report().devices);
        let has_peermem = matches!(variable("SOFTRNIC_GPU").as_deref(), Some("peermem" | "both"));
        let (places, is_verbose) = (&options.pci, options.verbose);
        faithful::enter(&devices, places, has_peermem, front.as_ref(), is_verbose)?;
    }
    Ok(())
}

/// Standard input is the socket to the process that it copies for.
#[derive(Debug, Args)]
pub(crate) struct HelperOptions {
    /// The fabric's file
    file: PathBuf,
    /// What the library speaks
    format: u32,
    /// Where in the file the bytes to and from which it copies begin
    at: u64,
    /// How many there are
    bytes: usize,
    /// The process slot of the one that it copies for
    owner: usize,
}

impl HelperOptions {
    /// Goes into the background; there it serves until the other process ends.
    pub(crate) fn serve(&self) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::Failed(format!("gpu-helper: {error}"));
        close_inherited().map_err(failed)?;
        let socket = stdin().as_fd().try_clone_to_owned().map_err(failed)?;
        // SAFETY: this program has one thread.
        match unsafe { libc::fork() } {
            -1 => Err(failed(std::io::Error::last_os_error())),
            0 => {
                // A signal from the terminal is for the application, which may need copies to end
                // in order. SAFETY: no memory is involved.
                unsafe { libc::setsid() };
                let stage =
                    Stage { file: &self.file, at: self.at, bytes: self.bytes, owner: self.owner };
                serve(socket, stage, self.format).map_err(Failure::Failed)
            }
            // The one that has started it does not have to wait any more.
            _ => Ok(()),
        }
    }
}

/// Closes what the application had open, but for the standard streams: its peers are not to wait
/// until this process ends, too.
fn close_inherited() -> std::io::Result<()> {
    let open = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    for fd in open.collect::<Vec<_>>().into_iter().filter(|fd| *fd > 2) {
        // SAFETY: this program has opened none that it still uses.
        unsafe { libc::close(fd) };
    }
    Ok(())
}
