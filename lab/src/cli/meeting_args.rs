//! The arguments that make a command a session of several hosts.

use std::time::Duration;

use clap::Args;

use crate::error::{Error, Result};
use crate::hosts;
use crate::hosts::Role;

#[derive(Debug, Clone, Args)]
pub struct MeetingArgs {
    /// Take part in the session of the server there
    #[arg(value_name = "HOST:PORT", conflicts_with_all = ["serve", "job"])]
    server: Option<String>,
    /// Several hosts: be the server, at this address [default: 0.0.0.0:0]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "0.0.0.0:0", conflicts_with = "job")]
    serve: Option<String>,
    /// Several hosts under torchrun, srun or mpirun, one process on each: rank 0 is the server, at
    /// MASTER_ADDR, port MASTER_PORT + 2
    #[arg(long)]
    job: bool,
    /// Password of the session, the same on all hosts [default: random, and the server prints it;
    /// with --job the launcher's job id]
    #[arg(long, value_name = "TEXT")]
    token: Option<String>,
    /// How long the server waits for all hosts, and a host of `compare` for the server; s
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    wait: u64,
}

impl MeetingArgs {
    /// What the arguments and the launcher's variables say; by hand it is a session of `hosts`.
    /// `None`: of this host alone.
    ///
    /// # Errors
    /// [`Error::Usage`] if something is missing.
    pub fn role(
        &self,
        hosts: usize,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Role>> {
        if let Some(place) = &self.server {
            let token = self
                .token
                .clone()
                .ok_or_else(|| Error::Usage("HOST:PORT needs the server's --token".into()))?;
            return Ok(Some(Role::Host { place: place.clone(), token, hosts: None }));
        }
        if let Some(address) = &self.serve {
            let token = self.token.clone().map_or_else(hosts::new_token, Ok)?;
            return Ok(Some(Role::Server { addresses: vec![address.clone()], token, hosts }));
        }
        if self.job {
            hosts::of_launcher(self.token.as_deref(), variable).map(Some)
        } else {
            Ok(None)
        }
    }

    /// How long the server waits for all hosts, or a host of a comparison for the server.
    pub fn wait(&self) -> Duration {
        Duration::from_secs(self.wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_needs_the_token_and_a_command_of_one_host_nothing() {
        let alone = MeetingArgs { server: None, serve: None, job: false, token: None, wait: 1 };
        assert_eq!(alone.role(2, |_| None).expect("no session"), None);
        let joined = MeetingArgs { server: Some("n0:1".into()), ..alone.clone() };
        assert!(
            joined.role(2, |_| None).is_err_and(|problem| problem.to_string().contains("--token"))
        );
        let served = MeetingArgs { serve: Some("n0:1".into()), ..alone };
        assert!(matches!(served.role(2, |_| None), Ok(Some(Role::Server { hosts: 2, .. }))));
    }
}
