//! Which of several equal ways a switch chooses for the packets of a queue pair: by a hash of the header fields in which queue pairs
//! differ. Protocol and UDP destination port are the same in all RoCE v2 packets, and so not hashed here.

use crate::abi::types::Gid;

/// The UDP source port of the packets of a queue pair. It is made from a flow label of 20 bits: the lower 14 bits and the upper 6 bits, one
/// upon the other, in the range of dynamic ports. Where the address vector has none (0), from one that is made from the numbers of both
/// queue pairs.
pub(crate) fn udp_source_port(flow_label: u32, local: u32, remote: u32) -> u16 {
    let label = match flow_label & LABEL_MASK {
        0 => {
            let product = u64::from(local) * u64::from(remote);
            (product ^ product >> 20 ^ product >> 40) as u32 & LABEL_MASK
        }
        label => label,
    };
    (0xc000 | (label ^ label >> 14) & 0x3fff) as u16
}

const LABEL_MASK: u32 = 0xf_ffff;

/// Which of `paths`, of which there is one at least, packets with these addresses and UDP source port take.
pub(crate) fn path(source: &Gid, target: &Gid, port: u16, paths: u32) -> u32 {
    let words = [source, target].into_iter().flat_map(|gid| gid.chunks_exact(8));
    let addresses = words.fold(0, |state, word| mix(state ^ word.try_into().map_or(0, u64::from_be_bytes)));
    (mix(addresses ^ u64::from(port)) % u64::from(paths.max(1))) as u32
}

/// The finaliser of splitmix64: a bijection in which each bit of the result depends on all bits of `word`.
pub(crate) fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_come_from_the_flow_label_and_else_from_the_queue_pairs() {
        // 3 * 5 = 15; the upper bits of the label count too.
        let ports = [udp_source_port(0, 3, 5), udp_source_port(1, 3, 5), udp_source_port(1 << 14, 9, 9)];
        assert_eq!(ports, [0xc00f, 0xc001, 0xc001]);
        assert_eq!(udp_source_port(0xf_ffff, 0, 0), 0xffc0);
        assert_eq!(udp_source_port(0, 7, 100), udp_source_port(0, 100, 7), "both directions have the same");
    }

    #[test]
    fn all_paths_are_taken_by_about_as_many_flow_labels() {
        let mut counts = [0; 4];
        for label in 1..=4000 {
            counts[path(&[1; 16], &[2; 16], udp_source_port(label, 1, 1), 4) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (880..1120).contains(count)), "{counts:?}");
        assert_eq!(path(&[1; 16], &[2; 16], 0xc000, 1), 0);
    }
}
