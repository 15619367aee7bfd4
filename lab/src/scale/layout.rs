//! How many nodes there are, and how a hybrid-parallel job uses them.

/// Ranks of a node: each is a process with a GPU and a NIC of its own.
pub(crate) const NODE_RANKS: u64 = 8;
/// The most ranks that are modelled.
pub(crate) const MOST_RANKS: u64 = 1 << 20;

/// Stages of the pipeline at most.
const MOST_STAGES: u64 = 16;
/// Nodes that are kept for data parallelism before there is a second stage.
const LEAST_REPLICAS: u64 = 8;
/// Ranks that hold the experts of one layer at most, one of each node.
const MOST_EXPERT_RANKS: u64 = 8;

/// Ranks of each dimension of a hybrid-parallel job: 8 tensor-parallel ranks in each node, and these, one rank of each node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Stages of the pipeline.
    pub(crate) pipeline: u64,
    /// Data-parallel replicas.
    pub(crate) data: u64,
    /// Expert-parallel ranks, which are some of the data-parallel ones.
    pub(crate) expert: u64,
}

impl Layout {
    /// That of a job of so many nodes, a power of two.
    pub(crate) fn of(nodes: u64) -> Self {
        let pipeline = (nodes / LEAST_REPLICAS).clamp(1, MOST_STAGES);
        let data = nodes / pipeline;
        Self { pipeline, data, expert: data.min(MOST_EXPERT_RANKS) }
    }
}

/// Nodes of `ranks` ranks.
pub(crate) fn nodes(ranks: u64) -> u64 {
    ranks / NODE_RANKS
}

/// A number of ranks that the model takes: a power of two of whole nodes.
///
/// # Errors
/// It is none; the message names the value and what is allowed.
pub(crate) fn parse_ranks(text: &str) -> Result<u64, String> {
    let ranks = text.replace(',', "").parse().ok();
    ranks.filter(|ranks: &u64| ranks.is_power_of_two() && (NODE_RANKS..=MOST_RANKS).contains(ranks)).ok_or_else(|| {
        format!("{text} is no number of ranks; powers of two from {NODE_RANKS} to {MOST_RANKS} are: whole nodes of {NODE_RANKS}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dimensions_multiply_to_all_nodes() {
        for nodes in (0..=17).map(|power| 1 << power) {
            let Layout { pipeline, data, expert } = Layout::of(nodes);
            assert_eq!(pipeline * data, nodes);
            assert!(data % expert == 0 && pipeline <= MOST_STAGES, "{nodes}");
        }
        assert_eq!(Layout::of(16_384), Layout { pipeline: 16, data: 1024, expert: 8 });
    }

    #[test]
    fn ranks_are_powers_of_two_of_whole_nodes() {
        assert_eq!((parse_ranks("8"), parse_ranks("131072")), (Ok(8), Ok(131_072)));
        for wrong in ["", "0", "4", "24", "-8", "2097152", "x"] {
            assert!(
                parse_ranks(wrong).is_err_and(|said| said.starts_with(wrong) && said.contains("1048576")),
                "{wrong}"
            );
        }
    }
}
