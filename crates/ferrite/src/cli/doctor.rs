//! The arguments of `ferrite doctor`, and what it prints.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use lab::cli::exit::Exit;
use lab::cli::meeting_args::MeetingArgs;
use lab::error::{Error, Result};
use lab::hosts;
use lab::hosts::Role;
use lab::system::dist::{Dist, Root};
use lab::system::output;
use serde::Serialize;

use crate::doctor::machine::Machine;
use crate::doctor::peers::server::Plan;
use crate::doctor::peers::session;
use crate::doctor::report::{RowReport, Verdict};
use crate::doctor::rows::software;
use crate::doctor::{report, rows};

#[derive(Debug, Args)]
#[command(after_help = "\
Run it where the job runs: in the same container, as the same user, with the same variables. It needs neither NCCL nor root. \
It opens devices, creates queue pairs for a test and destroys them; nothing else changes. Each line has a verdict, a row and a \
fact. The line after `->` says what to do. `unknown` means that it cannot be found out here. docs/doctor.md explains the \
rows.\n\n\
With --serve on one host and HOST:PORT on the others, or with --job under a launcher, it checks several hosts together: whether \
they are alike, and whether each reaches the others over each rail, and how fast.\n\n\
Exit code 0: nothing FAILs; 1: something FAILs, or warns with --fail-on-warn; 2: wrong command line; 130: interrupted.")]
pub(super) struct Doctor {
    /// Check only these rows, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with_all = ["server", "serve", "job"])]
    only: Vec<String>,
    /// List the rows and what they check, and end
    #[arg(long)]
    list: bool,
    /// Print JSON instead of lines
    #[arg(long)]
    json: bool,
    /// Exit with 1 also for warnings
    #[arg(long)]
    fail_on_warn: bool,
    /// Plugin to check [default: ../lib/libnccl-net.so beside this program]
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,
    /// Processes of the job on this host [default: one for each GPU that the driver has, or 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: Option<u32>,
    #[command(flatten)]
    peers: Peers,
    /// A folder that stands for / where files of /sys, /proc, /etc and /dev are read
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    sysroot: PathBuf,
}

/// A row as `--list --json` shows it.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    what: &'static str,
    why: &'static str,
    cure: &'static str,
}

impl Doctor {
    pub(super) fn run(self) -> Result<Exit> {
        let rows = rows::selected(&self.only)?;
        if self.list {
            let listed: Vec<Listed> = rows
                .iter()
                .map(|row| Listed { name: row.name, what: row.what, why: row.why, cure: row.cure })
                .collect();
            let text = match self.json {
                true => serde_json::to_string_pretty(&listed).unwrap_or_default() + "\n",
                false => {
                    let line = |row: &Listed| format!("{:<15} {}\n", row.name, row.what);
                    report::fitted(&listed.iter().map(line).collect::<String>(), output::width())
                }
            };
            return output::write_stdout(&text).map(|()| Exit::Good);
        }
        if !self.sysroot.is_dir() {
            return Err(Error::Usage(format!(
                "--sysroot {}: there is no such folder",
                self.sysroot.display()
            )));
        }
        let (json, fail_on_warn, peers) = (self.json, self.fail_on_warn, self.peers.clone());
        let role = peers.role(|name| std::env::var(name).ok())?;
        let machine = self.machine();
        if let Some(role) = role {
            return match peers.session(&machine, &role)? {
                Session::Joined(exit) => Ok(exit),
                Session::Served(looked) => finish(&machine, &looked, json, fail_on_warn),
            };
        }
        let plugin = machine.plugin.as_ref().ok().map(|path| machine.loader().absolute(path));
        let mut looked = Vec::new();
        for row in rows {
            let row = RowReport::new(row, (row.look)(&machine), plugin.as_deref(), &looked);
            output::check()?;
            looked.push(row);
        }
        finish(&machine, &looked, json, fail_on_warn)
    }

    fn machine(self) -> Machine {
        let text = |word: std::ffi::OsString| word.into_string().ok();
        let env: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((text(name)?, text(value)?)))
            .collect();
        let found = self.plugin.map_or_else(|| Dist::find()?.plugin(), Ok);
        let root = Root::new(self.sysroot);
        let gpus = root.names("/proc/driver/nvidia/gpus").len().max(1) as u32;
        Machine::new(
            root,
            env,
            found.map_err(|problem| problem.to_string()),
            self.ranks.unwrap_or(gpus),
        )
    }
}

/// Prints the lines and what comes behind them, or all as JSON; the exit code.
fn finish(machine: &Machine, looked: &[RowReport], json: bool, fail_on_warn: bool) -> Result<Exit> {
    let host = machine.root.text("/proc/sys/kernel/hostname").unwrap_or_default();
    // As https://no-color.org says.
    let has_colours = std::io::stdout().is_terminal() && machine.var("NO_COLOR").is_none();
    let lines = |width| {
        let rows = report::worst_first(looked).into_iter();
        rows.map(|row| row.text(width, has_colours)).collect::<String>()
    };
    let text = if json {
        report::json(&host, looked)
    } else {
        lines(output::width()) + &report::summary(looked)
    };
    output::write_stdout(&text)?;
    Ok(exit(looked, fail_on_warn))
}

fn exit(looked: &[RowReport], fail_on_warn: bool) -> Exit {
    let worst = report::worst(looked);
    if worst == Verdict::Fail || worst == Verdict::Warn && fail_on_warn {
        Exit::Worse
    } else {
        Exit::Good
    }
}

#[derive(Debug, Clone, Args)]
pub(super) struct Peers {
    #[command(flatten)]
    meeting: MeetingArgs,
    /// Number of hosts, this one included; with --serve
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=4096))]
    hosts: u16,
    /// Milliseconds of each bandwidth measurement between hosts
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    slice: u64,
    /// Test each rail with each rail of the other hosts, not only with the one of the same number
    #[arg(long)]
    full: bool,
}

/// How it ended here.
pub(super) enum Session {
    Served(Vec<RowReport>),
    Joined(Exit),
}

impl Peers {
    /// What the arguments and the launcher's variables say. `None`: the doctor looks at this
    /// machine alone.
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
                        "this host failed in the session of {place}; see above"
                    ))),
                };
            }
            Role::Server { addresses, token, hosts } => (addresses, token, *hosts),
        };
        let (listener, port) = hosts::listen(addresses)?;
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
    let address = software::chosen(machine)
        .map(|interface| interface.address.ip())
        .ok()
        .filter(|ip| !ip.is_loopback());
    match address {
        Some(IpAddr::V4(v4)) => v4.to_string(),
        _ => machine.root.text("/proc/sys/kernel/hostname").unwrap_or_else(|| "THIS_HOST".into()),
    }
}

/// What the hidden subcommand of a host's part does.
pub(super) fn host(place: &str, plugin: &Path) -> Result<Exit> {
    let session::Ended { failed, warned } = session::main(place, plugin)?;
    output::write_stderr(format_args!(
        "the session is over: {failed} FAIL, {warned} warn; the server has the report"
    ));
    Ok(if failed > 0 { Exit::Worse } else { Exit::Good })
}
