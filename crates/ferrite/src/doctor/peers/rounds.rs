//! Who meets whom: rounds in which each host is in one pair at most, so that the pairs of a round do not disturb each other.

/// Rounds in which every pair of `count` hosts meets once: a round-robin tournament.
pub(super) fn rounds(count: usize) -> Vec<Vec<(usize, usize)>> {
    // With an odd number one host rests in each round: it meets the last number, which nobody has.
    let even = count + count % 2;
    let mut circle: Vec<usize> = (0..even).collect();
    let mut rounds = Vec::new();
    for _ in 1..even {
        let pairs = (0..even / 2).map(|i| (circle[i], circle[even - 1 - i])).filter(|(a, b)| *a < count && *b < count);
        rounds.push(pairs.map(|(a, b)| (a.min(b), a.max(b))).collect());
        circle[1..].rotate_right(1);
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_meets_once_and_no_host_twice_in_a_round() {
        for count in 0..20 {
            let rounds = rounds(count);
            for round in &rounds {
                let mut hosts: Vec<usize> = round.iter().flat_map(|(a, b)| [*a, *b]).collect();
                let all = hosts.len();
                hosts.sort_unstable();
                hosts.dedup();
                assert_eq!(hosts.len(), all, "{round:?}");
            }
            let mut met: Vec<_> = rounds.into_iter().flatten().collect();
            met.sort_unstable();
            let every: Vec<_> = (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b))).collect();
            assert_eq!(met, every, "{count}");
        }
    }
}
