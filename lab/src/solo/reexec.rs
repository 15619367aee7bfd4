//! The process replaces itself once, to get the environment it needs from its start on.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::error::{Error, Result};
use crate::verbs::libibverbs::{Verbs, new_fabric_name};

/// Set in a process that has been replaced: the name of its fabric.
const MARK: &str = "FERRITE_SOLO";

/// Returns in a process that has the environment workers get; replaces any other by itself.
///
/// # Errors
/// [`Error::Io`] if the process cannot be replaced.
pub(super) fn ensure_environment(verbs: &Verbs, net_plugin: &str) -> Result<()> {
    if std::env::var_os(MARK).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(|e| Error::io("no own program", e))?;
    // The process keeps its id, so the fabric's name names its owner.
    let fabric = new_fabric_name();
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1));
    verbs.apply(&mut command, &fabric);
    // One line of output, unless the user wants more: the built-in transport warns on stdout.
    if std::env::var_os("NCCL_DEBUG").is_none() {
        command.env_remove("NCCL_DEBUG");
    }
    command.env("NCCL_NET_PLUGIN", net_plugin).env(MARK, fabric);
    Err(Error::io("cannot start this program again", command.exec()))
}

/// Removes what the software device leaves when a process does not end in order.
pub(super) fn clean(verbs: &Verbs) {
    if let Ok(fabric) = std::env::var(MARK) {
        verbs.clean(&fabric);
    }
}
