//! Ports of other cards that a device's connections may borrow while none of its own can be used.

use super::card::Card;
use super::rail::Rail;
use crate::host::sysfs;
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The ports that may be borrowed by a device.
#[derive(Debug, Default)]
pub struct Spares(Vec<(Distance, Arc<Rail>)>);

/// The distance between two cards: less is nearer.
type Distance = (Reverse<usize>, bool);

/// A borrowed port, as long as this lives.
#[derive(Debug)]
pub struct BorrowedPort(Arc<Rail>);

impl Spares {
    /// The subset of `all` ports that the device with the ports `own` may borrow: of other cards,
    /// and with the same link layer.
    pub fn of(own: &[Arc<Rail>], all: &[Arc<Rail>]) -> Self {
        let Some(first) = own.first() else { return Self::default() };
        let is_other = |port: &&Arc<Rail>| {
            port.infiniband == first.infiniband
                && !own.iter().any(|own| Arc::ptr_eq(&own.card, &port.card))
        };
        Self(
            all.iter()
                .filter(is_other)
                .map(|port| (distance(&first.card, &port.card), Arc::clone(port)))
                .collect(),
        )
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ports: the nearest first; of equally near ones, the one with the fewest borrowers.
    pub fn by_preference(&self) -> Vec<Arc<Rail>> {
        let mut ports: Vec<_> = self.0.iter().collect();
        ports.sort_by_key(|(distance, port)| (*distance, port.borrowers.load(Ordering::Relaxed)));
        ports.into_iter().map(|(_, port)| Arc::clone(port)).collect()
    }
}

fn distance(one: &Card, other: &Card) -> Distance {
    let common =
        common_bridges(one.pci_path().unwrap_or_default(), other.pci_path().unwrap_or_default());
    let nodes = [one, other].map(|card| sysfs::numa_node(&card.name));
    (Reverse(common), nodes[0] != nodes[1])
}

/// How many leading folders two sysfs paths have in common.
fn common_bridges(one: &str, other: &str) -> usize {
    one.split('/').zip(other.split('/')).take_while(|(a, b)| a == b).count()
}

impl BorrowedPort {
    /// A connection borrows `port`.
    pub fn new(port: &Arc<Rail>) -> Self {
        port.borrowers.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(port))
    }

    /// The port.
    pub fn port(&self) -> &Arc<Rail> {
        &self.0
    }
}

impl Drop for BorrowedPort {
    fn drop(&mut self) {
        self.0.borrowers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_behind_one_bridge_are_nearer_than_those_of_another_socket() {
        let path = "/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0";
        let others = [
            "/sys/devices/pci0000:16/0000:16:01.0/0000:18:00.0",
            "/sys/devices/pci0000:16/0000:16:02.0/0000:19:00.0",
            "/sys/devices/pci0000:97/0000:97:01.0/0000:98:00.0",
            "",
        ];
        let common = others.map(|other| common_bridges(path, other));
        assert!(common.is_sorted_by(|a, b| a > b), "{common:?}");
        assert!((Reverse(5), true) < (Reverse(4), false), "the path counts before the NUMA node");
        assert!((Reverse(4), false) < (Reverse(4), true));
    }
}
