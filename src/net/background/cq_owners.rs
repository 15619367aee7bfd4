//! Which connection owns a completion queue, so that a queue's failure concerns that connection
//! only.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Owners of completion queues, by the queues' ids, which are never reused. Removes dead entries
/// from time to time.
#[derive(Debug)]
pub struct CqOwners<T> {
    by_queue: HashMap<u64, Weak<T>>,
    sweep_at: usize,
}

const FEW: usize = 32;

impl<T> Default for CqOwners<T> {
    fn default() -> Self {
        Self { by_queue: HashMap::new(), sweep_at: FEW }
    }
}

impl<T> CqOwners<T> {
    /// Records `owner` as the owner of `queue`.
    pub fn add(&mut self, queue: u64, owner: &Arc<T>) {
        if self.by_queue.len() >= self.sweep_at {
            self.by_queue.retain(|_, owner| owner.strong_count() > 0);
            self.sweep_at = FEW.max(2 * self.by_queue.len());
        }
        self.by_queue.insert(queue, Arc::downgrade(owner));
    }

    /// Forgets `queue`, which its owner has released: late reports of it concern no connection.
    pub fn give_up(&mut self, queue: u64) {
        self.by_queue.remove(&queue);
    }

    /// The owner of `queue`; `None` if it has none yet or no longer.
    pub fn of(&self, queue: u64) -> Option<Arc<T>> {
        self.by_queue.get(&queue).and_then(Weak::upgrade)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_its_owner_until_that_gives_it_up_or_goes() {
        let mut owners = CqOwners::default();
        let (first, second) = (Arc::new(1), Arc::new(2));
        owners.add(7, &first);
        owners.add(8, &first);
        owners.add(9, &second);
        assert_eq!(
            (owners.of(7), owners.of(9), owners.of(10)),
            (Some(Arc::clone(&first)), Some(Arc::clone(&second)), None)
        );
        owners.give_up(7);
        drop(second);
        assert_eq!((owners.of(7), owners.of(8), owners.of(9)), (None, Some(first), None));
    }

    #[test]
    fn owners_that_have_gone_are_not_kept() {
        let (mut owners, living) = (CqOwners::default(), Arc::new(1));
        owners.add(7, &living);
        for queue in 100..10_000 {
            owners.add(queue, &Arc::new(3));
            assert!(owners.by_queue.len() <= 2 * FEW);
        }
        assert_eq!(owners.of(7), Some(living));
    }
}
