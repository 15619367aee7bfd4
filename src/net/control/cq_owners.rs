//! Which connection a completion queue belongs to: what the device reports of a queue concerns that one only.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Owners of completion queues, by the queues' ids. Those that have gone are struck off now and then.
///
/// A device may report of a queue for a while after its owner has given it up, and before it is destroyed.
#[derive(Debug)]
pub struct CqOwners<T> {
    /// `None`: it was given up, and is not destroyed yet.
    by_queue: HashMap<u64, Option<Weak<T>>>,
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
            self.by_queue.retain(|_, owner| owner.as_ref().is_none_or(|owner| owner.strong_count() > 0));
            self.sweep_at = FEW.max(2 * self.by_queue.len());
        }
        self.by_queue.insert(queue, Some(Arc::downgrade(owner)));
    }

    /// `owner` has given `queue` up: what is reported of it concerns nobody. Its id may be another one's by now.
    pub fn give_up(&mut self, queue: u64, owner: &Arc<T>) {
        let is_its = |of_queue: &Weak<T>| std::ptr::eq(of_queue.as_ptr(), Arc::as_ptr(owner));
        if let Some(of_queue) = self.by_queue.get_mut(&queue) {
            of_queue.take_if(|of_queue| is_its(of_queue));
        }
    }

    /// A queue with the id `queue`, which was given up, is destroyed.
    pub fn forget(&mut self, queue: u64) {
        if self.by_queue.get(&queue).is_some_and(Option::is_none) {
            self.by_queue.remove(&queue);
        }
    }

    /// Whose `queue` is.
    pub fn of(&self, queue: u64) -> CqOwner<T> {
        match self.by_queue.get(&queue) {
            Some(owner) => owner.as_ref().and_then(Weak::upgrade).map_or(CqOwner::Gone, CqOwner::Known),
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
            owners.forget(queue);
            assert!(owners.by_queue.len() <= 2 * FEW);
        }
        owners.add(7, &first);
        owners.give_up(7, &first);
        (1000..2000).for_each(|queue| owners.add(queue, &Arc::new(3)));
        assert_eq!(owners.of(7), CqOwner::Gone, "it is not destroyed yet");
        owners.forget(7);
        assert_eq!(owners.of(7), CqOwner::Unknown);
        owners.add(7, &first);
        owners.add(7, &second);
        owners.forget(7);
        owners.give_up(7, &first);
        assert_eq!(owners.of(7), CqOwner::Known(second), "it was another one's by then");
    }
}
