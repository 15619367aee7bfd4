//! Runs a program on the software device: sets the environment, and becomes the program.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;

use crate::clean::forget_old_runs;
use crate::faithful;
use crate::find::to_look_at;
use crate::outcome::Failure;
use crate::settings::Settings;
use crate::variable::variable;

/// Runs a program on the software device. What it starts takes part as well.
///
/// The options come before the program. The exit status is the program's; 2 if it cannot be run.
#[derive(Debug, Args)]
#[command(override_usage = "softrnic run [OPTIONS] [--] PROGRAM [ARGUMENTS]...", arg_required_else_help = true)]
pub(crate) struct Options {
    #[command(flatten)]
    settings: Settings,
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
    let mut set = options.settings.variables(fabric, Some(&options.command[0]))?;
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
    if options.faithful {
        // Others may use the fabric already, and have decided what its devices are like.
        let devices = to_look_at(fabric).map_or(planned, |network| network.report().devices);
        let has_peermem = matches!(variable("SOFTRNIC_GPU").as_deref(), Some("peermem" | "both"));
        faithful::enter(&devices, &options.pci, has_peermem, options.verbose)?;
    }
    Ok(())
}
