//! The identity of an end of a connection, which the two ends exchange for messages and statistics.

use super::codec::{Reader, Writer};
use super::{Violation, violation};
use std::fmt;

/// The most bytes of a host name; a longer one is truncated.
pub const MAX_HOST_BYTES: usize = 64;
/// Ranks are below this number.
const RANKS: u32 = 1 << 31;
/// Stands for an unknown rank.
const NONE: u32 = u32::MAX;

/// The process of an end. It is only for people; nothing depends on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Host name.
    pub host: String,
    /// Process id, in the process's own namespace.
    pub pid: u32,
    /// The process's rank according to the tags of its sends, if it has sent with exactly one rank.
    /// NCCL's tags are ranks in a communicator, not in the job.
    pub rank: Option<u32>,
    /// The process's rank in the job according to its launcher.
    pub label: Option<u32>,
}

impl Identity {
    pub(super) fn emit(&self, to: &mut Writer) {
        let host = (0..=self.host.len().min(MAX_HOST_BYTES))
            .rev()
            .find(|at| self.host.is_char_boundary(*at));
        to.name(&self.host[..host.unwrap_or(0)]);
        to.u32(self.pid);
        to.u32(self.rank.unwrap_or(NONE));
        to.u32(self.label.unwrap_or(NONE));
    }

    /// # Errors
    /// It is too short, the host name is too long, or a rank is invalid.
    pub(super) fn parse(from: &mut Reader<'_>) -> Result<Self, Violation> {
        let host = from.name()?;
        if host.len() > MAX_HOST_BYTES {
            return Err(violation!(
                "a host name of {} bytes; at most {MAX_HOST_BYTES} are allowed",
                host.len()
            ));
        }
        let pid = from.u32()?;
        Ok(Self { host, pid, rank: rank(from.u32()?)?, label: rank(from.u32()?)? })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, pid, rank, label } = self;
        match (rank, label) {
            (None, None) => write!(f, "process {pid} on {host}"),
            (Some(rank), Some(label)) if rank != label => {
                write!(f, "rank {rank} (rank {label} of the job) on {host} (pid {pid})")
            }
            (Some(rank), _) | (None, Some(rank)) => write!(f, "rank {rank} on {host} (pid {pid})"),
        }
    }
}

fn rank(bits: u32) -> Result<Option<u32>, Violation> {
    match bits {
        NONE => Ok(None),
        rank if rank < RANKS => Ok(Some(rank)),
        other => Err(violation!("{other} is not a rank")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survives(identity: &Identity) -> Result<Identity, Violation> {
        let mut body = Writer::default();
        identity.emit(&mut body);
        let mut reader = Reader(&body.0);
        let parsed = Identity::parse(&mut reader)?;
        reader.end().map(|()| parsed)
    }

    #[test]
    fn an_identity_survives_the_wire() {
        for (rank, label) in [(None, None), (Some(0), Some(RANKS - 1)), (Some(7), None)] {
            let identity = Identity { host: "n-0412".into(), pid: 3021, rank, label };
            assert_eq!(survives(&identity), Ok(identity));
        }
    }

    #[test]
    fn a_process_is_named_by_its_rank_or_by_its_number() {
        let name = |rank, label| Identity { host: "n".into(), pid: 7, rank, label }.to_string();
        assert_eq!(name(None, None), "process 7 on n");
        assert_eq!(
            [name(Some(3), None), name(None, Some(3)), name(Some(3), Some(3))],
            ["rank 3 on n (pid 7)"; 3]
        );
        assert_eq!(name(Some(3), Some(9)), "rank 3 (rank 9 of the job) on n (pid 7)");
    }

    #[test]
    fn a_long_host_name_is_cut_between_characters() {
        let identity =
            Identity { host: format!("{}é", "x".repeat(63)), pid: 1, rank: None, label: None };
        assert_eq!(survives(&identity).map(|identity| identity.host), Ok("x".repeat(63)));
    }

    #[test]
    fn what_no_ferrite_says_is_refused() {
        let mut long = Writer::default();
        long.name(&"x".repeat(MAX_HOST_BYTES + 1));
        long.bytes(&[0; 12]);
        assert!(Identity::parse(&mut Reader(&long.0)).is_err(), "a long name");
        for rank in [RANKS, NONE - 1] {
            let mut body = Writer::default();
            body.name("n");
            [1, rank, NONE].into_iter().for_each(|word| body.u32(word));
            assert!(Identity::parse(&mut Reader(&body.0)).is_err(), "rank {rank}");
        }
        assert!(Identity::parse(&mut Reader(&[1, b'n', 0, 0])).is_err(), "cut");
    }

    #[test]
    fn a_host_name_of_the_greatest_length_is_taken() {
        let identity =
            Identity { host: "x".repeat(MAX_HOST_BYTES), pid: 1, rank: None, label: None };
        assert_eq!(survives(&identity), Ok(identity));
    }
}
