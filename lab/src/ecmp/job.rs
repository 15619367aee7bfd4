//! Which NIC sends to which, and which messages wait for others.

use std::str::FromStr;

use crate::ecmp::hash::Random;

/// NICs that one sends to at once in an all-to-all.
const PEERS: usize = 8;
/// Hosts of a group in a hierarchical operation.
const GROUP_HOSTS: usize = 8;

/// What a job does over the fabric all the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    /// A ring over all hosts on each rail.
    Ring,
    /// Each NIC sends to eight others of its rail.
    AllToAll,
    /// Hosts are in groups of eight, which have switches of their own for what they do inside. On each rail, the hosts with the same
    /// place in their groups are a ring.
    Hierarchical,
}

impl Workload {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::AllToAll => "all-to-all",
            Self::Hierarchical => "hierarchical",
        }
    }

    /// Hosts at least.
    pub(crate) fn least_hosts(self) -> usize {
        match self {
            Self::Ring | Self::AllToAll => 2,
            Self::Hierarchical => 2 * GROUP_HOSTS,
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Ring, Self::AllToAll, Self::Hierarchical];
        all.into_iter()
            .find(|workload| workload.name() == text)
            .ok_or_else(|| format!("{text} is no workload; ring, all-to-all and hierarchical are"))
    }
}

/// One connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stream {
    pub(super) from: usize,
    pub(super) to: usize,
    /// The connection whose messages this one forwards: message n is sent only when that one has delivered message n less the depth.
    pub(super) forwards: Option<usize>,
    /// The ring it is in, or the NIC that sends. What counts of a group is its slowest connection.
    pub(super) group: usize,
}

/// The connections of a job on `hosts` hosts, which are placed at random. NICs are numbered host by host, with `rails` each.
pub(super) fn streams(workload: Workload, hosts: usize, rails: usize, random: &mut Random) -> Vec<Stream> {
    let mut order: Vec<usize> = (0..hosts).collect();
    random.shuffle(&mut order);
    let mut streams = Vec::new();
    match workload {
        Workload::Ring => add_rings(&mut streams, &[order], rails),
        Workload::Hierarchical => {
            let groups = hosts / GROUP_HOSTS;
            // Groups are leaves' worth of neighbouring hosts, in any order.
            random.shuffle(&mut order[..groups]);
            let mut numbers: Vec<usize> = (0..groups).collect();
            random.shuffle(&mut numbers);
            let ring = |place| numbers.iter().map(|group| group * GROUP_HOSTS + place).collect::<Vec<_>>();
            let rings: Vec<_> = (0..GROUP_HOSTS).map(ring).collect();
            add_rings(&mut streams, &rings, rails);
        }
        Workload::AllToAll => {
            let mut shifts: Vec<usize> = (1..hosts).collect();
            random.shuffle(&mut shifts);
            shifts.truncate(PEERS);
            for nic in 0..hosts * rails {
                let (host, rail) = (nic / rails, nic % rails);
                let to = |shift: &usize| (host + shift) % hosts * rails + rail;
                streams.extend(shifts.iter().map(|shift| Stream {
                    from: nic,
                    to: to(shift),
                    forwards: None,
                    group: nic,
                }));
            }
        }
    }
    streams
}

fn add_rings(streams: &mut Vec<Stream>, rings: &[Vec<usize>], rails: usize) {
    let mut group = 0;
    for ring in rings {
        for rail in 0..rails {
            let (first, count) = (streams.len(), ring.len());
            let nic = |place: usize| ring[place % count] * rails + rail;
            streams.extend((0..count).map(|place| Stream {
                from: nic(place),
                to: nic(place + 1),
                forwards: Some(first + (place + count - 1) % count),
                group,
            }));
            group += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(workload: Workload, hosts: usize, rails: usize) -> Vec<Stream> {
        streams(workload, hosts, rails, &mut Random::new(5))
    }

    #[test]
    fn a_ring_visits_each_nic_of_a_rail_once_and_forwards_what_the_one_before_delivers() {
        for (workload, groups) in [(Workload::Ring, 2), (Workload::Hierarchical, 16)] {
            let streams = of(workload, 16, 2);
            for end in [|s: &Stream| s.from, |s: &Stream| s.to] {
                let mut nics: Vec<_> = streams.iter().map(end).collect();
                nics.sort_unstable();
                assert_eq!(nics, (0..32).collect::<Vec<_>>());
            }
            assert!(streams.iter().all(|s| s.from % 2 == s.to % 2), "a rail is not left");
            assert!(streams.iter().all(|s| streams[s.forwards.expect("a ring")].to == s.from));
            assert_eq!(streams.iter().map(|s| s.group).max(), Some(groups - 1));
        }
    }

    #[test]
    fn in_an_all_to_all_each_nic_sends_to_as_many_others_as_send_to_it() {
        let streams = of(Workload::AllToAll, 16, 2);
        for nic in 0..32 {
            assert_eq!(streams.iter().filter(|s| s.from == nic).count(), 8);
            assert_eq!(streams.iter().filter(|s| s.to == nic).count(), 8);
        }
        assert!(streams.iter().all(|s| s.from != s.to && s.from % 2 == s.to % 2));
        assert_eq!(of(Workload::AllToAll, 4, 1).len(), 12, "three others are all there are");
    }
}
