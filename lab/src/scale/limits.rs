//! The number of ranks from which a limit is exceeded.

use nccl_net::inspect::stats::layout::MAX_RECORDS;
use serde::Serialize;

use crate::scale::demand::{Demand, Setting, Transport};
use crate::scale::group::Group;
use crate::scale::layout::{MOST_RANKS, NODE_RANKS};

/// Something that there is only so much of.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    /// What, with the limit and its unit.
    pub(crate) what: &'static str,
    /// Where it comes from.
    pub(crate) source: &'static str,
    /// The most.
    pub(crate) most: f64,
    /// The transports that have it.
    pub(crate) of: &'static [Transport],
    /// What a rank takes of it.
    pub(crate) taken: fn(&Demand) -> f64,
}

/// Those that are known.
pub(crate) const LIMITS: [Limit; 7] = [
    Limit {
        what: "512 descriptors",
        source: "half of the usual soft limit of a process (`ulimit -Sn`): where GPU memory is registered by dma-buf, Ferrite may keep \
                 descriptors of it in the other half",
        most: 512.0,
        of: &[Transport::Ferrite],
        taken: |demand| demand.descriptors,
    },
    Limit {
        what: "1,024 descriptors",
        source: "the usual soft limit of a process (`ulimit -Sn`)",
        most: 1024.0,
        of: &Transport::ALL,
        taken: |demand| demand.descriptors,
    },
    Limit {
        what: "4,096 ends",
        source: "records of a statistics file: further ends are not in `ferrite top`. Nothing else changes for them",
        most: MAX_RECORDS as f64,
        of: &[Transport::Ferrite],
        taken: |demand| demand.ends,
    },
    Limit {
        what: "1 GiB of queues and registered memory",
        source: "chosen: 8 GiB of a node, all of it locked",
        most: (1 << 20) as f64,
        of: &Transport::ALL,
        taken: |demand| demand.queue_kib + demand.registered_kib,
    },
    Limit { what: "10 s of set-up", source: "chosen", most: 10.0, of: &Transport::ALL, taken: |demand| demand.setup_s },
    Limit {
        what: "130,763 queue pairs",
        source: "a ConnectX-6 that reports 262,144 refuses further ones: libfabric issue 7368. Others may differ",
        most: 130_763.0,
        of: &Transport::ALL,
        taken: |demand| demand.queue_pairs,
    },
    Limit {
        what: "524,288 descriptors",
        source: "the usual hard limit of a process (`ulimit -Hn`)",
        most: 524_288.0,
        of: &Transport::ALL,
        taken: |demand| demand.descriptors,
    },
];

/// The number of ranks, of those that the model takes, at which each limit is first exceeded.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Bend {
    pub(crate) limit: &'static str,
    pub(crate) group: &'static str,
    pub(crate) stock: Option<u64>,
    pub(crate) ferrite: Option<u64>,
}

/// Of each of these groups, those limits that one of the transports exceeds at all.
pub(crate) fn bends(groups: &[Group], setting: &Setting) -> Vec<Bend> {
    let all = groups.iter().flat_map(|group| {
        LIMITS.iter().map(|limit| {
            let from = |transport| exceeded_from(limit, transport, *group, setting);
            let [stock, ferrite] = Transport::ALL.map(from);
            Bend { limit: limit.what, group: group.name(), stock, ferrite }
        })
    });
    all.filter(|bend| bend.stock.is_some() || bend.ferrite.is_some()).collect()
}

fn exceeded_from(limit: &Limit, transport: Transport, group: Group, setting: &Setting) -> Option<u64> {
    let ranks =
        std::iter::successors(Some(NODE_RANKS), |ranks| Some(2 * ranks)).take_while(|ranks| *ranks <= MOST_RANKS);
    ranks.into_iter().find(|ranks| {
        let demand = Demand::of(transport, &group.parts(*ranks, setting.channels), setting);
        limit.of.contains(&transport) && (limit.taken)(&demand) > limit.most
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTING: Setting = Setting { communicators: 1, channels: 2, queue_pairs: 1, command_us: 100.0 };

    #[test]
    fn rings_trees_and_hybrid_jobs_meet_no_limit() {
        assert_eq!(bends(&[Group::Ring, Group::Tree, Group::Hybrid], &SETTING), []);
    }

    #[test]
    fn all_to_all_meets_the_descriptors_first_with_either_transport() {
        let bends = bends(&[Group::AllToAll], &SETTING);
        let from = |what: &str| bends.iter().find(|bend| bend.limit == what).map(|bend| (bend.stock, bend.ferrite));
        // 4,096 ranks: 511 peers, a socket for each way, and those for the cards.
        assert_eq!(from("1,024 descriptors"), Some((Some(4096), Some(4096))));
        assert_eq!(from("512 descriptors"), Some((None, Some(2048))), "dma-buf is Ferrite's alone");
        assert_eq!(from("10 s of set-up"), Some((Some(32_768), Some(65_536))));
        assert!(bends.iter().all(|bend| bend.ferrite.is_none_or(|ranks| ranks >= 2048)), "{bends:?}");
    }

    #[test]
    fn without_pxn_the_queue_pairs_of_a_card_are_exceeded() {
        let bends = bends(&[Group::AllToAllDirect], &SETTING);
        let pairs = bends.iter().find(|bend| bend.limit == "130,763 queue pairs").expect("they are");
        assert_eq!((pairs.stock, pairs.ferrite), (Some(65_536), Some(65_536)));
        assert!(
            Demand::of(Transport::Ferrite, &Group::AllToAllDirect.parts(32_768, 2), &SETTING).queue_pairs < 130_763.0
        );
    }
}
