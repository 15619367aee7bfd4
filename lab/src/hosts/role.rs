//! Whether this process serves a session of several hosts or takes part in one, and where.

use crate::error::{Error, Result};

/// How far the server's port lies above `MASTER_PORT`.
const ABOVE_MASTER: u16 = 2;
const MASTER_PORT: u16 = 29500;

/// What this process is in the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It serves so many hosts, with its own, at the first of these addresses that this host has.
    Server { addresses: Vec<String>, token: String, hosts: usize },
    /// It takes part in the session of the server there. A launcher says of how many hosts that is.
    Host { place: String, token: String, hosts: Option<usize> },
}

/// What a launcher's variables say, with one process a host: rank 0 serves.
///
/// # Errors
/// [`Error::Usage`] if something is missing or is no number.
pub fn of_launcher(token: Option<&str>, variable: impl Fn(&str) -> Option<String>) -> Result<Role> {
    let find = |names: &[&str]| names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()));
    let first =
        |names: &[&str]| find(names).ok_or_else(|| Error::Usage(format!("--job needs one of {}", names.join(", "))));
    let number =
        |text: String| text.parse::<usize>().map_err(|_| Error::Usage(format!("{text:?} is no number of a rank")));
    let rank = number(first(&["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])?)?;
    let hosts = number(first(&["WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])?)?;
    let of_slurm = || find(&["SLURM_STEP_NODELIST"]).and_then(|nodes| first_node(&nodes));
    let master = find(&["MASTER_ADDR"]).or_else(of_slurm).map_or_else(|| first(&["MASTER_ADDR"]), Ok)?;
    let port = variable("MASTER_PORT").map_or(Ok(MASTER_PORT), |text| {
        text.parse::<u16>().map_err(|_| Error::Usage(format!("MASTER_PORT={text}: a port is expected")))
    })?;
    let port = port.checked_add(ABOVE_MASTER).ok_or_else(|| Error::Usage(format!("MASTER_PORT={port} is too high")))?;
    let token = match token {
        Some(token) => token.to_owned(),
        None => first(&["TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"])
            .map_err(|problem| Error::Usage(format!("{problem}, or --token")))?,
    };
    Ok(match rank {
        // Not on networks that the job does not use: the token may be known to others.
        0 => Role::Server { addresses: vec![format!("{master}:{port}"), format!("0.0.0.0:{port}")], token, hosts },
        _ => Role::Host { place: format!("{master}:{port}"), token, hosts: Some(hosts) },
    })
}

/// The first of a node list such as `gpu[03-07,11],login1`.
fn first_node(nodes: &str) -> Option<String> {
    let (name, rest) = nodes.split_at(nodes.find(['[', ',']).unwrap_or(nodes.len()));
    let number = rest.strip_prefix('[').and_then(|numbers| numbers.split(['-', ',', ']']).next()).unwrap_or_default();
    Some(format!("{name}{number}")).filter(|node| !node.is_empty())
}

/// A token that nobody guesses.
///
/// # Errors
/// [`Error::Unreadable`] if the system has no random bytes.
pub fn new_token() -> Result<String> {
    let bytes: [u8; 8] = nccl_net::inspect::random::bytes().map_err(|error| Error::Unreadable(error.text()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(variables: &[(&str, &str)]) -> Result<Role> {
        of_launcher(None, |name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_launcher_tells_who_serves_and_where() {
        let of = |rank: &'static str| {
            role(&[
                ("RANK", rank),
                ("WORLD_SIZE", "3"),
                ("MASTER_ADDR", "n0"),
                ("MASTER_PORT", "4000"),
                ("SLURM_JOB_ID", "77"),
            ])
            .expect("all is there")
        };
        assert_eq!(
            of("0"),
            Role::Server { addresses: vec!["n0:4002".into(), "0.0.0.0:4002".into()], token: "77".into(), hosts: 3 }
        );
        assert_eq!(of("2"), Role::Host { place: "n0:4002".into(), token: "77".into(), hosts: Some(3) });
    }

    #[test]
    fn slurm_tells_the_host_of_rank_0_by_its_list_of_nodes() {
        for (nodes, first) in
            [("gpu[03-07,11],login1", "gpu03"), ("node0,node1", "node0"), ("n[1,4]", "n1"), ("a", "a")]
        {
            let all =
                [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_STEP_NODELIST", nodes), ("SLURM_JOB_ID", "7")];
            let expected = Role::Host { place: format!("{first}:29502"), token: "7".into(), hosts: Some(2) };
            assert_eq!(role(&all).expect("all is there"), expected, "{nodes}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = role(&[]).expect_err("nothing is set").to_string();
        assert!(missing.contains("RANK, SLURM_PROCID"), "{missing}");
        let missing = role(&[("RANK", "1"), ("WORLD_SIZE", "2")]).expect_err("no host of rank 0").to_string();
        assert!(missing.contains("MASTER_ADDR"), "{missing}");
    }
}
