//! Which connection a completion queue belongs to: what the device reports of a queue concerns that one only.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Owners of completion queues, by the queues' ids. Those that have gone are struck off now and then.
///
/// A device may report of a queue for a while after its owner has given it up, and before it is destroyed.
#[derive(Debug)]
pub struct CqOwners<T> {
    by_queue: HashMap<u64, Weak<T>>,
    sweep_at: usize,
}

/// Whose a completion queue is.
#[derive(Debug, PartialEq, Eq)]
pub enum CqOwner<T> {
    /// This one's.
    Known(Arc<T>),
    /// One's that has gone.
    Gone,
    /// Nobody has said so.
    Unknown,
}

const FEW: usize = 32;

impl<T> Default for CqOwners<T> {
    fn default() -> Self {
        Self { by_queue: HashMap::new(), sweep_at: FEW }
    }
}

impl<T> CqOwners<T> {
    /// From now on `queue` is `owner`'s. An id may have been another queue's before.
    pub fn add(&mut self, queue: u64, owner: &Arc<T>) {
        if self.by_queue.len() >= self.sweep_at {
            self.by_queue.retain(|_, owner| owner.strong_count() > 0);
            self.sweep_at = FEW.max(2 * self.by_queue.len());
        }
        self.by_queue.insert(queue, Arc::downgrade(owner));
    }

    /// `owner` has given `queue` up: what is reported of it concerns nobody. Its id may be another one's by now.
    pub fn give_up(&mut self, queue: u64, owner: &Arc<T>) {
        let of_queue = self.by_queue.get_mut(&queue);
        if let Some(of_queue) = of_queue.filter(|of_queue| std::ptr::eq(of_queue.as_ptr(), Arc::as_ptr(owner))) {
            *of_queue = Weak::new();
        }
    }

    /// Whose `queue` is.
    pub fn of(&self, queue: u64) -> CqOwner<T> {
        match self.by_queue.get(&queue).map(Weak::upgrade) {
            Some(Some(owner)) => CqOwner::Known(owner),
            Some(None) => CqOwner::Gone,
            None => CqOwner::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_the_latest_owners() {
        let mut owners = CqOwners::default();
        let (first, second) = (Arc::new(1), Arc::new(2));
        owners.add(7, &first);
        owners.add(8, &second);
        assert_eq!(
            (owners.of(7), owners.of(8), owners.of(9)),
            (CqOwner::Known(first.clone()), CqOwner::Known(second.clone()), CqOwner::Unknown)
        );
        drop(second);
        assert_eq!(owners.of(8), CqOwner::Gone);
        owners.add(8, &first);
        assert_eq!(owners.of(8), CqOwner::Known(first.clone()));
        for queue in 100..10_000 {
            owners.add(queue, &Arc::new(3));
            assert!(owners.by_queue.len() <= 2 * FEW);
        }
        assert_eq!(owners.of(8), CqOwner::Known(first));
    }

    #[test]
    fn an_owner_that_has_many_queues_one_after_the_other_is_not_kept_for_each() {
        let mut owners = CqOwners::default();
        let (first, second) = (Arc::new(1), Arc::new(2));
        for queue in 0..1000 {
            owners.add(queue, &first);
            owners.give_up(queue, &first);
            assert_eq!(owners.of(queue), CqOwner::Gone, "not one that nobody has heard of");
            assert!(owners.by_queue.len() <= 2 * FEW);
        }
        owners.add(7, &first);
        owners.add(7, &second);
        owners.give_up(7, &first);
        assert_eq!(owners.of(7), CqOwner::Known(second), "it was another one's by then");
    }
}
