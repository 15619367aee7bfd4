//! Max-min fair rates: no flow can have more without another one, which has no more than it, having less.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Links of a path at most: through three tiers of switches.
pub(super) const MAX_HOPS: usize = 6;

/// The links that a flow takes, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Path {
    links: [u32; MAX_HOPS],
    count: u8,
}

impl Path {
    /// A path over up to [`MAX_HOPS`] links.
    pub(super) fn new(links: &[usize]) -> Self {
        let mut path = Self::default();
        for (place, link) in path.links.iter_mut().zip(links) {
            *place = *link as u32;
            path.count += 1;
        }
        path
    }

    pub(super) fn links(&self) -> impl Iterator<Item = usize> {
        self.links.iter().take(self.count.into()).map(|link| *link as usize)
    }
}

/// Memory that is used again from one call to the next.
#[derive(Debug, Default)]
pub(super) struct Fair {
    /// By link: what is left of its capacity, and how many of its flows have no rate yet.
    left: Vec<f64>,
    waiting: Vec<u32>,
    /// By link: where its flows begin in `flows`.
    starts: Vec<u32>,
    flows: Vec<u32>,
    /// Links with what each waiting flow could have of them. Entries may be out of date: too small.
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    is_done: Vec<bool>,
}

impl Fair {
    /// The rates of flows with these `paths` over links with these `capacities`, in the same unit, which are not negative. A path has at
    /// least one link.
    pub(super) fn rates(&mut self, capacities: &[f64], paths: &[Path]) -> Vec<f64> {
        let mut rates = vec![0.0; paths.len()];
        self.prepare(capacities, paths);
        let Self { left, waiting, starts, flows, heap, is_done } = self;
        let share = |left: f64, waiting: u32| (left.max(0.0) / f64::from(waiting)).to_bits();
        while let Some(Reverse((bits, link))) = heap.pop() {
            let at = link as usize;
            if waiting[at] == 0 {
                continue;
            }
            // What other flows leave of a link only becomes more for each of its own.
            let now = share(left[at], waiting[at]);
            if now > bits {
                heap.push(Reverse((now, link)));
                continue;
            }
            let rate = f64::from_bits(now);
            for flow in &flows[starts[at] as usize..starts[at + 1] as usize] {
                let flow = *flow as usize;
                if std::mem::replace(&mut is_done[flow], true) {
                    continue;
                }
                rates[flow] = rate;
                for other in paths[flow].links() {
                    left[other] -= rate;
                    waiting[other] -= 1;
                }
            }
        }
        rates
    }

    fn prepare(&mut self, capacities: &[f64], paths: &[Path]) {
        let Self { left, waiting, starts, flows, heap, is_done } = self;
        left.clear();
        left.extend_from_slice(capacities);
        waiting.clear();
        waiting.resize(capacities.len(), 0);
        is_done.clear();
        is_done.resize(paths.len(), false);
        paths.iter().flat_map(Path::links).for_each(|link| waiting[link] += 1);
        starts.clear();
        starts.push(0);
        let mut end = 0;
        starts.extend(waiting.iter().map(|count| {
            end += count;
            end
        }));
        flows.clear();
        flows.resize(end as usize, 0);
        let mut next = starts.clone();
        for (flow, path) in paths.iter().enumerate() {
            for link in path.links() {
                flows[next[link] as usize] = flow as u32;
                next[link] += 1;
            }
        }
        heap.clear();
        heap.extend(
            (0u32..)
                .zip(left.iter().zip(waiting.iter()))
                .filter(|(_, (_, waiting))| **waiting > 0)
                .map(|(link, (left, waiting))| Reverse(((left / f64::from(*waiting)).to_bits(), link))),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::hash::Random;
    use super::*;

    fn rates(capacities: &[f64], paths: &[&[usize]]) -> Vec<f64> {
        let paths: Vec<_> = paths.iter().map(|links| Path::new(links)).collect();
        Fair::default().rates(capacities, &paths)
    }

    #[test]
    fn flows_of_one_link_share_it_evenly() {
        assert_eq!(rates(&[1.0], &[&[0], &[0], &[0], &[0]]), [0.25; 4]);
    }

    /// A chain of two links, the second of twice the capacity: the long flow and the short one halve the first link, and the third
    /// flow has what is left of the second.
    #[test]
    fn what_a_flow_cannot_use_goes_to_the_others() {
        assert_eq!(rates(&[1.0, 2.0], &[&[0, 1], &[0], &[1]]), [0.5, 0.5, 1.5]);
        // Three links of 1, 2 and 4: link 0 gives 0.5 to each of two; link 1 has 1.5 left for one; link 2 has 2 left for one.
        assert_eq!(rates(&[1.0, 2.0, 4.0], &[&[0], &[0, 1, 2], &[1, 2], &[2]]), [0.5, 0.5, 1.5, 2.0]);
    }

    #[test]
    fn a_flow_over_a_link_without_capacity_has_no_rate() {
        assert_eq!(rates(&[0.0, 1.0], &[&[0, 1], &[1]]), [0.0, 1.0]);
    }

    /// The two properties that define the rates, for random fabrics.
    #[test]
    fn no_link_carries_more_than_its_capacity_and_each_flow_has_a_full_link_on_which_no_flow_is_faster() {
        let mut random = Random::new(1);
        let mut fair = Fair::default();
        for case in 0..200 {
            let capacities: Vec<f64> =
                (0..1 + random.below(30)).map(|_| 0.1 + random.below(100) as f64 / 25.0).collect();
            let path = |random: &mut Random| {
                let mut links: Vec<usize> = (0..capacities.len()).collect();
                random.shuffle(&mut links);
                links.truncate(1 + random.below(MAX_HOPS));
                Path::new(&links)
            };
            let paths: Vec<Path> = (0..1 + random.below(80)).map(|_| path(&mut random)).collect();
            let rates = fair.rates(&capacities, &paths);
            let on =
                |link: usize| paths.iter().zip(&rates).filter(move |(path, _)| path.links().any(|other| other == link));
            let load = |link: usize| on(link).map(|(_, rate)| rate).sum::<f64>();
            for (link, capacity) in capacities.iter().enumerate() {
                assert!(load(link) <= capacity + 1e-9, "case {case}: link {link} carries {} of {capacity}", load(link));
            }
            for (path, rate) in paths.iter().zip(&rates) {
                let is_bottleneck = |link: usize| {
                    load(link) >= capacities[link] - 1e-9 && on(link).all(|(_, other)| *other <= rate + 1e-9)
                };
                assert!(path.links().any(is_bottleneck), "case {case}: a flow at {rate} could have more: {path:?}");
            }
        }
    }
}
