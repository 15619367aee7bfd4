//! The arguments that say which libibverbs and which devices.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::error::{Error, Result};
use crate::system::dist::Dist;
use crate::verbs::libibverbs::Verbs;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum VerbsName {
    /// The software RDMA device, private to each pair of processes
    Softrnic,
    /// The libibverbs of this machine
    System,
}

#[derive(Debug, Args)]
pub(super) struct DeviceArgs {
    /// Which libibverbs the transports get
    #[arg(long, value_enum, default_value = "softrnic")]
    verbs: VerbsName,
    /// Folder of the software device's libibverbs.so.1 [default: ../softrnic beside this program]
    #[arg(long, value_name = "DIR")]
    softrnic: Option<PathBuf>,
    /// Device index of rank 0 [default: 0]
    #[arg(long, value_name = "N")]
    dev0: Option<usize>,
    /// Device index of rank 1 [default: 1 if there are two devices, else 0]
    #[arg(long, value_name = "N")]
    dev1: Option<usize>,
}

impl DeviceArgs {
    pub(super) fn verbs(&self) -> Result<Verbs> {
        match (self.verbs, &self.softrnic) {
            (VerbsName::System, None) => Ok(Verbs::System),
            (VerbsName::System, Some(_)) => {
                Err(Error::Usage("--softrnic and --verbs system exclude each other".into()))
            }
            (VerbsName::Softrnic, Some(folder)) => Verbs::softrnic(folder),
            (VerbsName::Softrnic, None) => Verbs::softrnic(&Dist::find()?.softrnic()),
        }
    }

    pub(super) fn devices(&self) -> [Option<usize>; 2] {
        [self.dev0, self.dev1]
    }
}
