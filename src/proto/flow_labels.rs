//! The flow labels of a sender's lanes.
//!
//! A RoCE v2 device makes the UDP source port of a queue pair's packets from the flow label of its address vector: the low 14 bits and the
//! high 6 bits, one upon the other, in the range of dynamic ports (rdma-core, `rdma_flow_label_to_udp_sport`). A fabric with ECMP chooses the
//! path by that port, among other fields. Without a flow label the device makes one from the numbers of both queue pairs, so a
//! queue pair that replaces another one has another path. With one, the lanes that are not to move keep theirs.

use super::{MAX_QPS, MAX_RAILS};

/// Lanes of a rail that may have a label.
const LANES: usize = MAX_QPS / MAX_RAILS;

/// The labels of all lanes, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowLabels(Option<Box<Table>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Table {
    /// By number of the rail, and number of the lane on it.
    labels: [[u32; LANES]; MAX_RAILS],
    /// State of the random numbers.
    random: u64,
    /// How often a lane got another one.
    replaced: u64,
}

impl FlowLabels {
    /// No lane has one, and none gets one.
    pub const NONE: Self = Self(None);

    /// One for each lane, at random, with UDP source ports that all differ.
    pub fn random(seed: u64) -> Self {
        let mut table = Table { labels: [[0; LANES]; MAX_RAILS], random: seed, replaced: 0 };
        for (rail, lane) in (0..MAX_RAILS).flat_map(|rail| (0..LANES).map(move |lane| (rail, lane))) {
            table.labels[rail][lane] = table.other();
        }
        Self(Some(Box::new(table)))
    }

    /// Whether lanes have labels.
    pub fn are_used(&self) -> bool {
        self.0.is_some()
    }

    /// That of lane number `lane` of a rail; 0: it has none.
    pub fn of(&self, rail: u8, lane: u8) -> u32 {
        let rail = self.0.as_ref().and_then(|table| table.labels.get(usize::from(rail)));
        rail.and_then(|lanes| lanes.get(usize::from(lane))).copied().unwrap_or(0)
    }

    /// Gives that lane another one, if it has one, whose UDP source port is that of no lane. The others keep theirs.
    pub fn replace(&mut self, rail: u8, lane: u8) {
        let Some(table) = &mut self.0 else { return };
        let other = table.other();
        if let Some(label) = table.labels.get_mut(usize::from(rail)).and_then(|lanes| lanes.get_mut(usize::from(lane)))
        {
            *label = other;
            table.replaced += 1;
        }
    }

    /// How often a lane has got another one.
    pub fn replaced(&self) -> u64 {
        self.0.as_ref().map_or(0, |table| table.replaced)
    }
}

impl Table {
    /// A label whose UDP source port is that of no lane.
    fn other(&mut self) -> u32 {
        loop {
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let label = (mix(self.random) >> 44) as u32;
            let is_taken = self.labels.iter().flatten().any(|taken| *taken != 0 && port(*taken) == port(label));
            if label != 0 && !is_taken {
                return label;
            }
        }
    }
}

/// The UDP source port, but for the highest two bits, which are always set.
fn port(label: u32) -> u32 {
    (label ^ label >> 14) & 0x3fff
}

/// The output function of splitmix64.
fn mix(state: u64) -> u64 {
    let state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ state >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn all(labels: &FlowLabels) -> Vec<u32> {
        (0..4).flat_map(|rail| (0..8).map(move |lane| labels.of(rail, lane))).collect()
    }

    #[test]
    fn labels_are_of_20_bits_and_lead_to_ports_that_all_differ() {
        for seed in 0..200 {
            let labels = all(&FlowLabels::random(seed));
            assert!(labels.iter().all(|label| (1..1 << 20).contains(label)), "{labels:?}");
            assert_eq!(labels.iter().map(|label| port(*label)).collect::<BTreeSet<_>>().len(), 32, "{labels:?}");
        }
    }

    #[test]
    fn a_lane_gets_another_port_and_the_others_keep_theirs() {
        let mut labels = FlowLabels::random(7);
        for _ in 0..1000 {
            let before = labels.clone();
            labels.replace(2, 5);
            assert_eq!(labels.replaced(), before.replaced() + 1);
            assert_ne!(port(labels.of(2, 5)), port(before.of(2, 5)));
            let changed = all(&labels).iter().zip(all(&before)).filter(|(now, then)| **now != *then).count();
            assert_eq!(changed, 1);
            assert_eq!(all(&labels).iter().map(|label| port(*label)).collect::<BTreeSet<_>>().len(), 32);
        }
    }

    #[test]
    fn without_labels_none_is_given() {
        let mut labels = FlowLabels::NONE;
        labels.replace(0, 0);
        assert_eq!((labels.are_used(), labels.of(0, 0), labels.of(0, 31)), (false, 0, 0));
        assert_eq!(FlowLabels::random(1).of(0, 8), 0, "more queue pairs than lanes may be");
    }

    #[test]
    fn labels_come_from_splitmix64() {
        let step = 0x9e37_79b9_7f4a_7c15_u64;
        let first = [1, 2, 3].map(|n| mix(step.wrapping_mul(n)));
        assert_eq!(first, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
        let labels = FlowLabels::random(0);
        assert!(labels.are_used());
        assert_eq!([labels.of(0, 0), labels.of(0, 1)], [0xe_220a, 0x6_e789]);
    }

    /// As `rdma_flow_label_to_udp_sport` has it.
    #[test]
    fn a_port_is_the_low_14_bits_and_the_high_6_one_upon_the_other() {
        assert_eq!([0, 0x3fff, 0x4000, 0xf_ffff, 0x5_4001].map(port), [0, 0x3fff, 1, 0x3fc0, 0x14]);
    }
}
