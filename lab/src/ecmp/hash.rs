//! The header fields of a RoCE v2 packet that switches hash, and the hash.

/// What differs between the packets of different queue pairs. The UDP destination port and the protocol are the same in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fields {
    /// The NICs' addresses.
    pub(super) source: u32,
    pub(super) destination: u32,
    /// UDP source port.
    pub(super) port: u16,
    /// Number of the destination queue pair, where switches hash it; else 0.
    pub(super) queue_pair: u32,
}

impl Fields {
    /// The hash of a switch; each switch has another `seed`.
    pub(super) fn hash(self, seed: u64) -> u64 {
        let addresses = u64::from(self.source) << 32 | u64::from(self.destination);
        let rest = u64::from(self.port) << 32 | u64::from(self.queue_pair);
        mix(mix(mix(seed) ^ addresses) ^ rest)
    }
}

/// The UDP source port that packets have whose address vector has this flow label of 20 bits: its low 14 bits and its high 6 bits,
/// one upon the other, in the range of dynamic ports.
pub(super) fn port_of_label(label: u32) -> u16 {
    (0xc000 | (label ^ label >> 14) & 0x3fff) as u16
}

/// The UDP source port of a queue pair without a flow label: that of a label made from the numbers of both queue pairs.
pub(super) fn port_of_queue_pairs(local: u32, remote: u32) -> u16 {
    let product = u64::from(local) * u64::from(remote);
    let folded = product ^ product >> 20 ^ product >> 40;
    port_of_label(folded as u32 & 0xf_ffff)
}

/// A bijection of 64 bits in which each bit of the result depends on all bits of `value`.
pub(super) fn mix(value: u64) -> u64 {
    let mut value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Random numbers: the same ones for the same seed.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// A number below `limit`, which is not 0.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_are_dynamic_ports_and_differ_with_the_label_and_the_queue_pairs() {
        assert_eq!((port_of_label(0), port_of_label(1), port_of_label(0xf_ffff)), (0xc000, 0xc001, 0xffc0));
        assert_eq!(port_of_label(1 << 14), 0xc001, "the high bits count too");
        // 3 * 5 = 15.
        assert_eq!(port_of_queue_pairs(3, 5), 0xc00f);
        let ports: std::collections::BTreeSet<_> =
            (0..100).map(|i| port_of_queue_pairs(0x2345 + i, 0x1789 + i)).collect();
        assert!(ports.len() > 90, "{}", ports.len());
    }

    #[test]
    fn a_hash_spreads_packets_that_differ_in_one_field_evenly() {
        let base = Fields { source: 1, destination: 2, port: 0xc000, queue_pair: 0 };
        let mut counts = [[0; 8]; 2];
        for i in 0..8000 {
            let by_port = Fields { port: 0xc000 + i, ..base };
            let by_queue_pair = Fields { queue_pair: i.into(), ..base };
            for (count, fields) in counts.iter_mut().zip([by_port, by_queue_pair]) {
                count[(fields.hash(7) % 8) as usize] += 1;
            }
        }
        assert!(counts.iter().flatten().all(|count| (880..1120).contains(count)), "{counts:?}");
    }
}
