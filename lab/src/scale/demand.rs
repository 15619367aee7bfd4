//! What a rank takes with a transport.

use serde::Serialize;

use crate::scale::constants::{self as of, Constant};
use crate::scale::group::Part;

/// One of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Transport {
    /// Built into NCCL 2.21.5.
    #[serde(rename = "built-in")]
    Stock,
    Ferrite,
}

impl Transport {
    pub(crate) const ALL: [Self; 2] = [Self::Stock, Self::Ferrite];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stock => "built-in",
            Self::Ferrite => "Ferrite",
        }
    }

    fn of(self, constant: Constant) -> f64 {
        match self {
            Self::Stock => constant.stock,
            Self::Ferrite => constant.ferrite,
        }
    }
}

/// What does not depend on the number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Setting {
    /// Communicators of each kind, over the same processes.
    pub(crate) communicators: u64,
    /// Channels of a communicator on one NIC.
    pub(crate) channels: u64,
    /// `NCCL_IB_QPS_PER_CONNECTION`.
    pub(crate) queue_pairs: u64,
    /// Time that a card takes for a command; us.
    pub(crate) command_us: f64,
}

/// What one rank, which is one process with one NIC, takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Demand {
    /// Ends of connections: those on which it sends, and as many on which it receives.
    pub(crate) ends: f64,
    /// Queue pairs, which are all on its card.
    pub(crate) queue_pairs: f64,
    /// Memory of queues, as mlx5 lays them out; KiB.
    pub(crate) queue_kib: f64,
    /// TCP sockets.
    pub(crate) sockets: f64,
    /// File descriptors, sockets included.
    pub(crate) descriptors: f64,
    /// Threads of the transport.
    pub(crate) threads: f64,
    /// Messages over TCP to set all up, those that it sends.
    pub(crate) messages: f64,
    /// Host memory that the transport registers for itself; KiB.
    pub(crate) registered_kib: f64,
    /// Set-up of all connections, one after the other: processor time and commands; s.
    pub(crate) setup_s: f64,
    /// Commands of a recovery of all connections, one after the other; s. 0: the transport recovers none.
    pub(crate) recovery_s: f64,
}

impl Demand {
    /// That of a rank with the connections of `parts`. No two parts have a peer in common: an upper bound for Ferrite's sockets.
    pub(crate) fn of(transport: Transport, parts: &[Part], setting: &Setting) -> Self {
        let pairs = setting.queue_pairs as f64;
        let (mut sends, mut peers) = (0.0, 0.0);
        for part in parts {
            sends += (part.sends * setting.communicators) as f64;
            peers += part.peers as f64;
        }
        let per = |constant| transport.of(constant);
        let flushes = sends * per(of::FLUSH_QUEUE_PAIRS);
        let sockets = 2.0 * (sends * per(of::SOCKETS_OF_AN_END) + peers * per(of::SOCKETS_OF_A_PEER));
        // An end that sends and one that receives are one connection's worth.
        let commands =
            sends * (per(of::COMMANDS) + pairs * per(of::QUEUE_PAIR_COMMANDS)) + flushes * per(of::FLUSH_COMMANDS);
        let recovery = 2.0 * sends * (pairs * per(of::RECOVERY_COMMANDS) + per(of::RECOVERY_QUEUE_COMMANDS));
        Self {
            ends: 2.0 * sends,
            queue_pairs: 2.0 * sends * pairs * per(of::QUEUE_PAIRS) + flushes,
            queue_kib: sends * pairs * per(of::QUEUE_KIB) + flushes * per(of::FLUSH_KIB),
            sockets,
            descriptors: sockets + per(of::DESCRIPTORS_OF_A_NODE) + per(of::DESCRIPTORS_OF_A_PROCESS),
            threads: per(of::THREADS),
            messages: sends * per(of::MESSAGES),
            registered_kib: sends * per(of::REGISTERED_BYTES) / 1024.0,
            setup_s: (sends * per(of::CPU_US) + commands * setting.command_us) / 1e6,
            recovery_s: recovery * setting.command_us / 1e6,
        }
    }
}

/// Queue pairs of a rank of Ferrite, if all connections from one process to another had one set of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Sharing {
    /// As it is: each connection has its own.
    pub(crate) own: f64,
    /// No two communicators have a peer in common.
    pub(crate) apart: f64,
    /// All communicators have the peers of the one with the most.
    pub(crate) together: f64,
    /// The same, and one queue pair carries both directions.
    pub(crate) both_ways: f64,
    /// Set-up as it is; s.
    pub(crate) own_s: f64,
    /// Commands for queue pairs and completion queues shared as `together` is, all else as it is; s.
    pub(crate) together_s: f64,
}

impl Sharing {
    pub(crate) fn of(parts: &[Part], setting: &Setting) -> Self {
        let own = Demand::of(Transport::Ferrite, parts, setting);
        let pairs = |peers: u64| 2.0 * peers as f64 * setting.queue_pairs as f64;
        let most = parts.iter().map(|part| part.peers).max().unwrap_or(0);
        // Each end that takes no queue pairs of its own saves half of both ends' commands, and a completion queue.
        let commands = of::QUEUE_PAIR_COMMANDS.ferrite / 2.0 * setting.queue_pairs as f64 + 1.0;
        let saved = (own.ends - 2.0 * most as f64) * commands * setting.command_us / 1e6;
        Self {
            own: own.queue_pairs,
            apart: pairs(parts.iter().map(|part| part.peers).sum()),
            together: pairs(most),
            both_ways: pairs(most) / 2.0,
            own_s: own.setup_s,
            together_s: own.setup_s - saved,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::group::Group;

    const SETTING: Setting = Setting { communicators: 1, channels: 2, queue_pairs: 1, command_us: 100.0 };

    fn demand(transport: Transport, group: Group, ranks: u64) -> Demand {
        Demand::of(transport, &group.parts(ranks, 2), &SETTING)
    }

    #[test]
    fn one_connection_each_way_takes_what_the_table_says() {
        let part = [Part { name: "", peers: 1, sends: 1 }];
        let [stock, ferrite] = Transport::ALL.map(|transport| Demand::of(transport, &part, &SETTING));
        assert_eq!((stock.queue_pairs, ferrite.queue_pairs), (3.0, 2.0));
        assert_eq!((stock.queue_kib, ferrite.queue_kib), (524.0, 124.0));
        assert_eq!((stock.sockets, ferrite.sockets), (2.0, 2.0));
        assert_eq!((stock.descriptors, ferrite.descriptors), (18.0, 24.0));
        assert_eq!((stock.registered_kib, ferrite.registered_kib), (272.0, 16.0));
        assert!((stock.setup_s - (640.0 + 19.0 * 100.0) / 1e6).abs() < 1e-9, "{stock:?}");
        assert_eq!(stock.recovery_s, 0.0);
        assert!((ferrite.recovery_s - 2.0 * 8.0 * 100e-6).abs() < 1e-9, "{ferrite:?}");
        assert!((ferrite.setup_s - (320.0 + 11.0 * 100.0) / 1e6).abs() < 1e-9, "{ferrite:?}");
    }

    #[test]
    fn with_more_queue_pairs_only_those_grow_and_their_commands() {
        let part = [Part { name: "", peers: 1, sends: 1 }];
        let [one, four] = [1, 4].map(|queue_pairs| {
            Demand::of(Transport::Ferrite, &part, &Setting { queue_pairs, command_us: 1.0, ..SETTING })
        });
        assert_eq!((four.queue_pairs, four.queue_kib), (8.0, 496.0));
        assert_eq!((four.sockets, four.registered_kib), (one.sockets, one.registered_kib));
        assert!((four.setup_s - one.setup_s - 24e-6).abs() < 1e-12);
    }

    #[test]
    fn ferrite_has_a_socket_for_each_process_and_the_built_in_for_each_connection() {
        assert_eq!(demand(Transport::Stock, Group::Tree, 64).sockets, 8.0);
        let wide = Group::Ring.parts(64, 16);
        let sockets = Transport::ALL.map(|transport| Demand::of(transport, &wide, &SETTING).sockets);
        assert_eq!(sockets, [32.0, 2.0]);
        let [stock, ferrite] = Transport::ALL.map(|transport| demand(transport, Group::AllToAll, 1024));
        assert_eq!(stock.sockets, ferrite.sockets, "one connection for each peer: nothing is shared");
    }

    #[test]
    fn sharing_saves_nothing_where_each_process_has_one_connection_to_a_peer() {
        let all = Sharing::of(&Group::AllToAll.parts(131_072, 2), &SETTING);
        assert_eq!((all.own, all.apart, all.together), (32_766.0, 32_766.0, 32_766.0));
        assert_eq!(all.own_s, all.together_s);
        let ring = Sharing::of(&Group::Ring.parts(131_072, 2), &SETTING);
        assert_eq!((ring.own, ring.apart, ring.together), (4.0, 2.0, 2.0));
        assert!((ring.own_s - ring.together_s - 10.0 * 100e-6).abs() < 1e-12, "{ring:?}");
    }
    #[test]
    fn further_communicators_over_the_same_processes_take_connections_and_no_sockets_of_ferrite() {
        let parts = Group::AllToAll.parts(1024, 2);
        let eight = Setting { communicators: 8, ..SETTING };
        let [stock, ferrite] = Transport::ALL.map(|transport| Demand::of(transport, &parts, &eight));
        assert_eq!((stock.sockets, ferrite.sockets), (8.0 * 254.0, 254.0));
        let sharing = Sharing::of(&parts, &eight);
        assert_eq!((sharing.own, sharing.together, sharing.both_ways), (2032.0, 254.0, 127.0));
    }
}
