//! The arguments of `ferrite doctor` that make it a session of several hosts.

use std::net::{TcpListener, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use clap::Args;

use crate::cli::exit::Exit;
use crate::doctor::machine::Machine;
use crate::doctor::peers::server::Plan;
use crate::doctor::peers::{host, session};
use crate::doctor::report::RowReport;
use crate::error::{Error, Result};
use crate::system::output;

/// How far the server's port lies above `MASTER_PORT`.
const ABOVE_MASTER: u16 = 2;
const MASTER_PORT: u16 = 29500;

#[derive(Debug, Clone, Args)]
pub(super) struct Peers {
    /// Take part in the session of the server there
    #[arg(value_name = "HOST:PORT", conflicts_with_all = ["serve", "job"])]
    server: Option<String>,
    /// Look at several hosts, and serve the others at this address [default: 0.0.0.0:0]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "0.0.0.0:0", conflicts_with = "job")]
    serve: Option<String>,
    /// The same under torchrun, srun or mpirun, one process a host: rank 0 serves at MASTER_ADDR, port MASTER_PORT + 2
    #[arg(long)]
    job: bool,
    /// Hosts that take part, with --serve
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=4096))]
    hosts: u16,
    /// What hosts of one session have in common [default: the server makes it up; with --job the launcher's job id]
    #[arg(long, value_name = "TEXT")]
    token: Option<String>,
    /// Time of each measurement between hosts; ms
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    slice: u64,
    /// The server waits so long for all hosts; s
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    wait: u64,
    /// Each rail with each rail of the others, and not only with the one of the same number
    #[arg(long)]
    full: bool,
}

/// What this process is in the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    Server { address: String, token: String, hosts: usize },
    Host { place: String, token: String },
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
        if let Some(place) = &self.server {
            let token =
                self.token.clone().ok_or_else(|| Error::Usage("HOST:PORT needs the server's --token".into()))?;
            return Ok(Some(Role::Host { place: place.clone(), token }));
        }
        if let Some(address) = &self.serve {
            let token = self.token.clone().map_or_else(new_token, Ok)?;
            return Ok(Some(Role::Server { address: address.clone(), token, hosts: self.hosts.into() }));
        }
        if self.job { self.job_role(variable).map(Some) } else { Ok(None) }
    }

    fn job_role(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Role> {
        let first = |names: &[&str]| {
            let found = names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()));
            found.ok_or_else(|| Error::Usage(format!("--job needs one of {}", names.join(", "))))
        };
        let number =
            |text: String| text.parse::<usize>().map_err(|_| Error::Usage(format!("{text:?} is no number of a rank")));
        let rank = number(first(&["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])?)?;
        let hosts = number(first(&["WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])?)?;
        let master = first(&["MASTER_ADDR"])?;
        let port = variable("MASTER_PORT").map_or(Ok(MASTER_PORT), |text| {
            text.parse::<u16>().map_err(|_| Error::Usage(format!("MASTER_PORT={text}: a port is expected")))
        })?;
        let port =
            port.checked_add(ABOVE_MASTER).ok_or_else(|| Error::Usage(format!("MASTER_PORT={port} is too high")))?;
        let token = match &self.token {
            Some(token) => token.clone(),
            None => first(&["TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"])
                .map_err(|problem| Error::Usage(format!("{problem}, or --token")))?,
        };
        Ok(match rank {
            0 => Role::Server { address: format!("0.0.0.0:{port}"), token, hosts },
            _ => Role::Host { place: format!("{master}:{port}"), token },
        })
    }

    /// Serves the session, or takes part in it.
    pub(super) fn session(&self, machine: &Machine, role: &Role) -> Result<Session> {
        let (address, token, hosts) = match role {
            Role::Host { place, token } => {
                let code = session::join(place, machine, token)?;
                return match code {
                    0 => Ok(Session::Joined(Exit::Good)),
                    1 => Ok(Session::Joined(Exit::Worse)),
                    _ => Err(Error::Unreadable(format!(
                        "this host's part in the session of {place} has failed, see above"
                    ))),
                };
            }
            Role::Server { address, token, hosts } => (address, token, *hosts),
        };
        let failed = |problem| Error::io(format!("cannot listen at {address}"), problem);
        let places: Vec<_> = address.to_socket_addrs().map_err(failed)?.collect();
        let listener = TcpListener::bind(&places[..]).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        output::write_stderr(format_args!(
            "on each other host: ferrite doctor THIS_HOST:{port} --token {token}    (waiting for {hosts} hosts, this one included)"
        ));
        let plan = Plan {
            token: token.clone(),
            hosts,
            limit: Duration::from_secs(self.wait),
            slice: Duration::from_millis(self.slice),
            is_full: self.full,
        };
        session::serve(&listener, machine, &plan).map(Session::Served)
    }
}

fn new_token() -> Result<String> {
    let bytes: [u8; 8] = nccl_net::inspect::random::bytes().map_err(|error| Error::Unreadable(error.text()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What the hidden subcommand of a host's part does.
pub(super) fn host(place: &str, plugin: &Path) -> Result<Exit> {
    let host::Ended { failed, warned } = host::main(place, plugin)?;
    output::write_stderr(format_args!("the session is over: {failed} FAIL, {warned} warn; the report is the server's"));
    Ok(if failed > 0 { Exit::Worse } else { Exit::Good })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers() -> Peers {
        Peers { server: None, serve: None, job: true, hosts: 2, token: None, slice: 1, wait: 1, full: false }
    }

    #[test]
    fn a_launcher_tells_who_serves_and_where() {
        let role = |rank: &'static str| {
            let variables = [
                ("RANK", rank),
                ("WORLD_SIZE", "3"),
                ("MASTER_ADDR", "n0"),
                ("MASTER_PORT", "4000"),
                ("SLURM_JOB_ID", "77"),
            ];
            let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
            peers().role(find).expect("all is there").expect("a session")
        };
        assert_eq!(role("0"), Role::Server { address: "0.0.0.0:4002".into(), token: "77".into(), hosts: 3 });
        assert_eq!(role("2"), Role::Host { place: "n0:4002".into(), token: "77".into() });
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = peers().role(|_| None).expect_err("nothing is set").to_string();
        assert!(missing.contains("RANK, SLURM_PROCID"), "{missing}");
        let joined = Peers { server: Some("n0:1".into()), job: false, ..peers() };
        assert!(joined.role(|_| None).is_err_and(|problem| problem.to_string().contains("--token")));
        assert_eq!(Peers { job: false, ..peers() }.role(|_| None).expect("no session"), None);
    }
}
