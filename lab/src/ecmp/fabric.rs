//! NICs, switches and links, and the path that a packet takes.
//!
//! NICs are connected to leaves, and each leaf to every spine; with three tiers, leaves and spines make up pods, and each spine is
//! connected to cores of its own, which connect it to the spine of the same number in the other pods. Each link has two directions,
//! which are links of their own here.

use crate::ecmp::fair::Path;
use crate::ecmp::hash::{Fields, mix};

/// How large a fabric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) nics: usize,
    /// NICs of a leaf.
    pub(super) leaf_nics: usize,
    /// Links of a leaf to spines, one to each.
    pub(super) uplinks: usize,
    /// Leaves of a pod, where there are three tiers.
    pub(super) pod_leaves: Option<usize>,
}

impl Shape {
    pub(super) fn leaves(self) -> usize {
        self.nics.div_ceil(self.leaf_nics)
    }

    fn leaves_in_pod(self) -> usize {
        self.pod_leaves.unwrap_or_else(|| self.leaves())
    }
}

/// What is wrong with a link between switches, in both directions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fault {
    /// It has this share of its capacity.
    Slow(f64),
    /// Of what it carries, this share arrives in time; the rest is sent again.
    Lossy(f64),
    /// It is down: switches do not choose it.
    Dead,
}

/// Switches and links.
#[derive(Debug, Clone)]
pub(super) struct Fabric {
    shape: Shape,
    seed: u64,
    /// By link, in units of a NIC's speed.
    pub(super) capacities: Vec<f64>,
    /// By link, the share of what is sent that arrives in time.
    goodput: Vec<f64>,
    is_dead: Vec<bool>,
}

impl Fabric {
    /// A fabric without faults whose switches hash as `seed` says.
    pub(super) fn new(shape: Shape, seed: u64) -> Self {
        let switch_links = 2 * shape.leaves() * shape.uplinks;
        let core_links =
            shape.pod_leaves.map_or(0, |leaves| 2 * shape.leaves().div_ceil(leaves) * shape.uplinks * leaves);
        let links = 2 * shape.nics + switch_links + core_links;
        Self { shape, seed, capacities: vec![1.0; links], goodput: vec![1.0; links], is_dead: vec![false; links] }
    }

    /// The same with all uplinks of a leaf made into one, each way, and with spines that are never full: what a fabric could do that
    /// spreads every packet.
    pub(super) fn pooled(&self) -> Self {
        let mut pooled = Self::new(Shape { uplinks: 1, pod_leaves: None, ..self.shape }, self.seed);
        for leaf in 0..self.shape.leaves() {
            for down in [false, true] {
                let of = |spine| self.leaf_link(leaf, spine, down);
                let usable = |link: &usize| !self.is_dead[*link];
                let sum = (0..self.shape.uplinks)
                    .map(of)
                    .filter(usable)
                    .map(|link| self.capacities[link] * self.goodput[link]);
                let sum: f64 = sum.sum();
                let at = pooled.leaf_link(leaf, 0, down);
                pooled.capacities[at] = sum;
            }
        }
        pooled
    }

    /// A link of capacity `capacity` besides those of the shape, for traffic that enters at a switch.
    pub(super) fn add_link(&mut self, capacity: f64) -> usize {
        self.capacities.push(capacity);
        self.goodput.push(1.0);
        self.is_dead.push(false);
        self.capacities.len() - 1
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    /// Something is wrong with the link between a leaf and a spine.
    pub(super) fn break_link(&mut self, leaf: usize, spine: usize, fault: Fault) {
        for link in [false, true].map(|down| self.leaf_link(leaf, spine, down)) {
            match fault {
                Fault::Slow(share) => self.capacities[link] = share,
                Fault::Lossy(share) => self.goodput[link] = share,
                Fault::Dead => self.is_dead[link] = true,
            }
        }
    }

    /// The share of what is sent over `path` that arrives in time.
    pub(super) fn goodput(&self, path: &Path) -> f64 {
        path.links().map(|link| self.goodput[link]).product()
    }

    /// The path of packets with these `fields` between two NICs. `None`: no path is left.
    pub(super) fn path(&self, from: usize, to: usize, fields: Fields) -> Option<Path> {
        self.switch_path(from / self.shape.leaf_nics, to / self.shape.leaf_nics, fields).map(|between| {
            let links: Vec<usize> =
                [self.nic_link(from, false)].into_iter().chain(between).chain([self.nic_link(to, true)]).collect();
            Path::new(&links)
        })
    }

    /// The links between two leaves.
    pub(super) fn switch_path(&self, from: usize, to: usize, fields: Fields) -> Option<Vec<usize>> {
        let Shape { uplinks, .. } = self.shape;
        let alive = |link: usize| !self.is_dead[link];
        let pod = |leaf: usize| leaf / self.shape.leaves_in_pod();
        if from == to {
            return Some(Vec::new());
        }
        let ends = |spine| (self.leaf_link(from, spine, false), self.leaf_link(to, spine, true));
        let spines = (0..uplinks).filter(|spine| alive(ends(*spine).0) && alive(ends(*spine).1));
        let spine = pick(spines, fields.hash(mix(self.seed) ^ from as u64))?;
        let (up, down) = ends(spine);
        if pod(from) == pod(to) {
            return Some(vec![up, down]);
        }
        let spine_number = (pod(from) * uplinks + spine) as u64;
        let core = pick(0..self.shape.leaves_in_pod(), fields.hash(mix(self.seed ^ 1) ^ spine_number))?;
        let (to_core, from_core) =
            (self.core_link(pod(from), spine, core, false), self.core_link(pod(to), spine, core, true));
        Some(vec![up, to_core, from_core, down])
    }

    fn nic_link(&self, nic: usize, down: bool) -> usize {
        2 * nic + usize::from(down)
    }

    fn leaf_link(&self, leaf: usize, spine: usize, down: bool) -> usize {
        2 * (self.shape.nics + leaf * self.shape.uplinks + spine) + usize::from(down)
    }

    fn core_link(&self, pod: usize, spine: usize, core: usize, down: bool) -> usize {
        let first = self.shape.nics + self.shape.leaves() * self.shape.uplinks;
        2 * (first + (pod * self.shape.uplinks + spine) * self.shape.leaves_in_pod() + core) + usize::from(down)
    }
}

/// The one of `choices` that a hash chooses.
fn pick(choices: impl Iterator<Item = usize> + Clone, hash: u64) -> Option<usize> {
    let count = choices.clone().count() as u64;
    (count > 0).then(|| hash % count).and_then(|number| choices.clone().nth(number as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const TWO: Shape = Shape { nics: 32, leaf_nics: 8, uplinks: 4, pod_leaves: None };
    const THREE: Shape = Shape { pod_leaves: Some(2), ..TWO };

    fn fields(port: u16) -> Fields {
        Fields { source: 1, destination: 2, port, queue_pair: 0 }
    }

    /// All links that packets between two NICs may take, and how many links each path has.
    fn links(fabric: &Fabric, from: usize, to: usize) -> (BTreeSet<usize>, BTreeSet<usize>) {
        let paths: Vec<_> = (0..500).filter_map(|port| fabric.path(from, to, fields(port))).collect();
        (paths.iter().flat_map(Path::links).collect(), paths.iter().map(|path| path.links().count()).collect())
    }

    #[test]
    fn packets_of_one_leaf_stay_there_and_others_take_every_spine_and_core() {
        let all = |shape, from, to| links(&Fabric::new(shape, 3), from, to);
        let lengths = |count| BTreeSet::from([count]);
        assert_eq!(all(TWO, 0, 7), (BTreeSet::from([0, 15]), lengths(2)));
        let (two, hops) = all(TWO, 0, 31);
        assert_eq!((two.len(), hops), (2 + 2 * 4, lengths(4)));
        assert_eq!(all(THREE, 0, 15).1, lengths(4), "of one pod");
        let (three, hops) = all(THREE, 0, 31);
        assert_eq!((three.len(), hops), (2 + 2 * 4 + 2 * 4 * 2, lengths(6)));
        assert!(three.iter().all(|link| *link < Fabric::new(THREE, 3).capacities.len()));
    }

    #[test]
    fn a_path_is_the_same_for_the_same_fields_and_seed() {
        let path = |seed, port| Fabric::new(THREE, seed).path(1, 30, fields(port));
        assert_eq!(path(3, 7), path(3, 7));
        assert!((0..20).any(|port| path(3, port) != path(4, port)), "each seed is another fabric");
    }

    #[test]
    fn switches_do_not_choose_a_dead_link_and_without_any_there_is_no_path() {
        let mut fabric = Fabric::new(TWO, 3);
        let dead = fabric.leaf_link(0, 2, false);
        fabric.break_link(0, 2, Fault::Dead);
        let (used, _) = links(&fabric, 0, 31);
        assert!(!used.contains(&dead));
        assert_eq!(used.len(), 2 + 2 * 3);
        (0..4).for_each(|spine| fabric.break_link(3, spine, Fault::Dead));
        assert_eq!(fabric.path(0, 31, fields(0)), None);
    }

    #[test]
    fn links_made_into_one_have_the_capacity_of_those_that_work() {
        let mut fabric = Fabric::new(TWO, 3);
        fabric.break_link(0, 0, Fault::Dead);
        fabric.break_link(0, 1, Fault::Slow(0.25));
        fabric.break_link(0, 2, Fault::Lossy(0.5));
        let pooled = fabric.pooled();
        assert_eq!(pooled.capacities[pooled.leaf_link(0, 0, false)], 1.75);
        assert_eq!(pooled.capacities[pooled.leaf_link(1, 0, true)], 4.0);
    }
}
