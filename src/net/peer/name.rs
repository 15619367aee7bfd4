//! The name of a peer in log lines and errors.

use crate::proto::identity::Identity;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

const NONE: u32 = u32::MAX;

/// The name of a peer. Until its rank is known, it is its device, process, host and address.
#[derive(Debug)]
pub struct PeerName {
    host: String,
    pid: u32,
    /// As derived from message tags.
    rank: AtomicU32,
    label: Option<u32>,
    /// The part after the rank.
    place: String,
    without_rank: String,
}

impl PeerName {
    /// The name of the process `identity` at `address`, with its end `endpoint`, whose text names
    /// the device too.
    pub fn new(identity: &Identity, endpoint: &str, address: SocketAddr) -> Self {
        let Identity { host, pid, rank, label } = identity;
        let device = endpoint.split_once(" of process ").map_or(endpoint, |(device, _)| device);
        Self {
            host: host.clone(),
            pid: *pid,
            rank: AtomicU32::new(rank.unwrap_or(NONE)),
            label: *label,
            place: format!("on {host} (pid {pid}; {device}, {address})"),
            without_rank: format!("{endpoint} ({address})"),
        }
    }

    /// The peer's process, with its rank if known.
    pub fn identity(&self) -> Identity {
        let rank = Some(self.rank.load(Ordering::Relaxed)).filter(|rank| *rank != NONE);
        Identity { host: self.host.clone(), pid: self.pid, rank, label: self.label }
    }

    /// Records the peer's rank, found in a message.
    pub fn set_rank(&self, rank: u32) {
        self.rank.store(rank, Ordering::Relaxed);
    }
}

impl From<&str> for PeerName {
    /// A name without a rank.
    fn from(name: &str) -> Self {
        Self {
            host: String::new(),
            pid: 0,
            rank: AtomicU32::new(NONE),
            label: None,
            place: name.into(),
            without_rank: name.into(),
        }
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, label, place, without_rank, .. } = self;
        match (rank.load(Ordering::Relaxed), label) {
            (NONE, None) => f.write_str(without_rank),
            (NONE, Some(label)) => write!(f, "rank {label} {place}"),
            (rank, Some(label)) if rank != *label => {
                write!(f, "rank {rank} (rank {label} of the job) {place}")
            }
            (rank, _) => write!(f, "rank {rank} {place}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(rank: Option<u32>, label: Option<u32>) -> PeerName {
        let identity = Identity { host: "n-0412".into(), pid: 3021, rank, label };
        PeerName::new(
            &identity,
            "mlx5_0 port 1 of process 3021 on n-0412",
            SocketAddr::from(([10, 0, 0, 1], 5)),
        )
    }

    #[test]
    fn a_peer_is_named_by_rank_host_and_pid_where_the_rank_is_known() {
        let place = "on n-0412 (pid 3021; mlx5_0 port 1, 10.0.0.1:5)";
        assert_eq!(
            name(None, None).to_string(),
            "mlx5_0 port 1 of process 3021 on n-0412 (10.0.0.1:5)"
        );
        assert_eq!(name(None, Some(118)).to_string(), format!("rank 118 {place}"));
        assert_eq!(
            name(Some(6), Some(118)).to_string(),
            format!("rank 6 (rank 118 of the job) {place}")
        );
        let name = name(None, Some(118));
        name.set_rank(118);
        assert_eq!(name.to_string(), format!("rank 118 {place}"));
    }
}
