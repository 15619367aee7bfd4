//! A list of objects with other owners, each under a number that is never reused.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The list. It removes dead entries from time to time, so that adding one has a constant cost.
#[derive(Debug)]
pub struct WeakRegistry<T: ?Sized> {
    by_number: BTreeMap<u64, Weak<T>>,
    next: u64,
    sweep_at: usize,
}

const FEW: usize = 32;

impl<T: ?Sized> WeakRegistry<T> {
    /// An empty list, whose numbers begin with `first`.
    pub fn new(first: u64) -> Self {
        Self { by_number: BTreeMap::new(), next: first, sweep_at: FEW }
    }

    /// Adds an object. Returns its number.
    pub fn add(&mut self, one: &Arc<T>) -> u64 {
        if self.by_number.len() >= self.sweep_at {
            self.by_number.retain(|_, one| one.strong_count() > 0);
            self.sweep_at = FEW.max(2 * self.by_number.len());
        }
        let number = self.next;
        self.next += 1;
        self.by_number.insert(number, Arc::downgrade(one));
        number
    }

    /// All living objects with their numbers, in the order of the numbers.
    pub fn numbered(&self) -> Vec<(u64, Arc<T>)> {
        let living = |(number, one): (&u64, &Weak<T>)| Some((*number, one.upgrade()?));
        self.by_number.iter().filter_map(living).collect()
    }

    /// All living objects, in the order of their numbers.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.by_number.values().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_gone_is_struck_off() {
        let mut registry = WeakRegistry::new(2);
        let kept = Arc::new(0);
        assert_eq!(registry.add(&kept), 2);
        for i in 1..10_000 {
            assert_eq!(registry.add(&Arc::new(i)), 2 + i);
            assert!(registry.by_number.len() <= 2 * FEW);
        }
        let last = Arc::new(1);
        assert_eq!(registry.add(&last), 10_002);
        assert_eq!(registry.numbered(), [(2, Arc::clone(&kept)), (10_002, last)]);
        assert_eq!(registry.all(), [kept]);
    }
}
