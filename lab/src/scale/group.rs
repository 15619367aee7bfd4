//! The communicators of a job, and the connections that each gives a rank.

use std::str::FromStr;

use crate::scale::layout::{Layout, NODE_RANKS, nodes};

/// Who talks to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// One communicator of all ranks, rings.
    Ring,
    /// The same with NCCL's double binary trees.
    Tree,
    /// The same, each rank sends to each, over the NIC of the peer's place in the node (PXN, which is NCCL's default).
    AllToAll,
    /// The same without PXN: each rank has a connection to each rank of other nodes.
    AllToAllDirect,
    /// A job with tensor, pipeline, data and expert parallelism.
    Hybrid,
}

/// What one communicator gives a rank. It receives from as many processes as it sends to, over as many connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// What the communicator does.
    pub(crate) name: &'static str,
    /// Processes that the rank sends to.
    pub(crate) peers: u64,
    /// Connections on which it sends.
    pub(crate) sends: u64,
}

impl Group {
    pub(crate) const ALL: [Self; 5] = [Self::Ring, Self::Tree, Self::AllToAll, Self::AllToAllDirect, Self::Hybrid];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::AllToAll => "all-to-all",
            Self::AllToAllDirect => "all-to-all-direct",
            Self::Hybrid => "hybrid",
        }
    }

    /// The communicators of a job of `ranks` ranks that use the network; `channels` of each go over a NIC.
    pub(crate) fn parts(self, ranks: u64, channels: u64) -> Vec<Part> {
        let nodes = nodes(ranks);
        let parts = match self {
            Self::Ring => vec![ring("ring", nodes, channels)],
            Self::Tree => vec![tree("double binary tree", nodes, channels)],
            Self::AllToAll => vec![each("all-to-all", nodes - 1)],
            Self::AllToAllDirect => vec![each("all-to-all without PXN", ranks - NODE_RANKS)],
            Self::Hybrid => hybrid(nodes, channels),
        };
        parts.into_iter().filter(|part| part.sends > 0).collect()
    }
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|group| group.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("{text} is no group; {names} are")
        })
    }
}

/// Rings of so many nodes: in each channel of a NIC the rank there sends to the next node and receives from the one before.
fn ring(name: &'static str, nodes: u64, channels: u64) -> Part {
    let peers = (nodes - 1).min(1);
    Part { name, peers, sends: peers * channels }
}

/// Half of the channels use one tree, half the other. A node that has two children in one is a leaf in the other. Data goes up
/// and down: with each neighbour there is a connection each way.
fn tree(name: &'static str, nodes: u64, channels: u64) -> Part {
    let (inside, leaf) = ((nodes - 1).min(3), (nodes - 1).min(1));
    let sends = inside * channels.div_ceil(2) + leaf * (channels / 2);
    Part { name, peers: (inside + leaf).min(nodes - 1), sends }
}

/// One channel to each of these peers.
fn each(name: &'static str, peers: u64) -> Part {
    Part { name, peers, sends: peers }
}

/// Of each node one rank is in a communicator, but in that of all ranks.
fn hybrid(nodes: u64, channels: u64) -> Vec<Part> {
    let Layout { pipeline, data, expert } = Layout::of(nodes);
    vec![
        ring("all ranks: ring", nodes, channels),
        tree("all ranks: double binary tree", nodes, channels),
        ring("data parallel: ring", data, channels),
        each("pipeline: the stages before and after", (pipeline - 1).min(2)),
        each("expert parallel: all-to-all", expert - 1),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sends(group: Group, ranks: u64, channels: u64) -> u64 {
        group.parts(ranks, channels).iter().map(|part| part.sends).sum()
    }

    #[test]
    fn a_node_by_itself_uses_no_network() {
        assert!(Group::ALL.iter().all(|group| group.parts(8, 4).is_empty()));
    }

    #[test]
    fn rings_and_trees_do_not_grow_and_all_to_all_does() {
        for (group, at_64, at_131072) in [
            (Group::Ring, 2, 2),
            (Group::Tree, 4, 4),
            (Group::AllToAll, 7, 16_383),
            (Group::AllToAllDirect, 56, 131_064),
            (Group::Hybrid, 2 + 4 + 2 + 7, 2 + 4 + 2 + 2 + 7),
        ] {
            assert_eq!((sends(group, 64, 2), sends(group, 131_072, 2)), (at_64, at_131072), "{}", group.name());
        }
    }

    #[test]
    fn the_connections_of_a_tree_are_those_of_its_edges() {
        // Of n nodes a tree has n - 1 edges; a node has at most three, and one that has three is a leaf of the other tree.
        assert_eq!(tree("", 2, 2), Part { name: "", peers: 1, sends: 2 });
        assert_eq!(tree("", 4, 2), Part { name: "", peers: 3, sends: 4 });
        assert_eq!(tree("", 4, 1).sends, 3);
        assert_eq!(tree("", 1024, 8), Part { name: "", peers: 4, sends: 16 });
    }

    #[test]
    fn names_are_read_back_and_others_are_refused_with_those_that_are_allowed() {
        for group in Group::ALL {
            assert_eq!(group.name().parse(), Ok(group));
        }
        assert!("star".parse::<Group>().is_err_and(|said| said.contains("star") && said.contains("all-to-all-direct")));
    }
}
