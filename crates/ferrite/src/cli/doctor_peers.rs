//! The arguments of `ferrite doctor` that make it a session of several hosts.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use clap::Args;

use crate::doctor::machine::Machine;
use crate::doctor::peers::server::Plan;
use crate::doctor::peers::{host, session};
use crate::doctor::report::RowReport;
use crate::doctor::rows::control;
use lab::cli::exit::Exit;
use lab::cli::meeting_args::MeetingArgs;
use lab::error::{Error, Result};
use lab::hosts::admission;
use lab::hosts::role::Role;
use lab::system::output;

#[derive(Debug, Clone, Args)]
pub(super) struct Peers {
    #[command(flatten)]
    meeting: MeetingArgs,
    /// Hosts that take part, with --serve
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=4096))]
    hosts: u16,
    /// Time of each measurement between hosts; ms
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    slice: u64,
    /// Each rail with each rail of the others, and not only with the one of the same number
    #[arg(long)]
    full: bool,
}

/// How it ended here.
pub(super) enum Session {
    Served(Vec<RowReport>),
    Joined(Exit),
}

impl Peers {
    /// What the arguments and the launcher's variables say. `None`: the doctor looks at this machine alone.
    ///
    /// # Errors
    /// [`Error::Usage`] if something is missing.
    pub(super) fn role(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Option<Role>> {
        self.meeting.role(self.hosts.into(), variable)
    }

    /// Serves the session, or takes part in it.
    pub(super) fn session(&self, machine: &Machine, role: &Role) -> Result<Session> {
        let (addresses, token, hosts) = match role {
            Role::Host { place, token, .. } => {
                let code = session::join(place, machine, token)?;
                return match code {
                    0 => Ok(Session::Joined(Exit::Good)),
                    1 => Ok(Session::Joined(Exit::Worse)),
                    _ => Err(Error::Unreadable(format!(
                        "this host's part in the session of {place} has failed, see above"
                    ))),
                };
            }
            Role::Server { addresses, token, hosts } => (addresses, token, *hosts),
        };
        let (listener, port) = admission::listen(addresses)?;
        output::write_stderr(format_args!(
            "on each other host: ferrite doctor {}:{port} --token {token}    (waiting for {hosts} hosts, this one included)",
            here(machine)
        ));
        let plan = Plan {
            token: token.clone(),
            hosts,
            limit: self.meeting.wait(),
            slice: Duration::from_millis(self.slice),
            is_full: self.full,
        };
        session::serve(&listener, machine, &plan).map(Session::Served)
    }
}

/// How others reach this host: by the address over which connections are set up, or by its name.
fn here(machine: &Machine) -> String {
    let address = control::chosen(machine).map(|interface| interface.address.ip()).ok().filter(|ip| !ip.is_loopback());
    match address {
        Some(IpAddr::V4(v4)) => v4.to_string(),
        _ => machine.root.text("/proc/sys/kernel/hostname").unwrap_or_else(|| "THIS_HOST".into()),
    }
}

/// What the hidden subcommand of a host's part does.
pub(super) fn host(place: &str, plugin: &Path) -> Result<Exit> {
    let host::Ended { failed, warned } = host::main(place, plugin)?;
    output::write_stderr(format_args!("the session is over: {failed} FAIL, {warned} warn; the report is the server's"));
    Ok(if failed > 0 { Exit::Worse } else { Exit::Good })
}
