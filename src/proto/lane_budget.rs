//! How many queue pairs the automatic lanes of a process may add on a card.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What is left of them.
#[derive(Debug, Clone)]
pub struct LaneBudget(Arc<AtomicU32>);

/// Some of them, which are given back when it is dropped.
#[derive(Debug)]
pub struct LaneLease {
    of: LaneBudget,
    count: u32,
}

impl LaneBudget {
    /// A budget of so many queue pairs, beside the first one of each connection.
    pub fn new(count: u32) -> Self {
        Self(Arc::new(AtomicU32::new(count)))
    }

    /// Whether so many are left.
    pub fn has(&self, count: u32) -> bool {
        self.0.load(Ordering::Relaxed) >= count
    }

    /// Takes so many. `None`: fewer are left.
    pub fn take(&self, count: u32) -> Option<LaneLease> {
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(count));
        taken.is_ok().then(|| LaneLease { of: self.clone(), count })
    }
}

impl LaneLease {
    /// Gives back what is more than `count`.
    pub fn shrink(&mut self, count: u32) {
        let kept = self.count.min(count);
        self.of.0.fetch_add(self.count - kept, Ordering::Relaxed);
        self.count = kept;
    }
}

impl Drop for LaneLease {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_taken_than_there_are_and_what_is_given_back_can_be_taken_again() {
        let budget = LaneBudget::new(7);
        let first = budget.take(3);
        let mut second = budget.take(3).expect("four are left");
        assert!(first.is_some() && budget.has(1) && !budget.has(2));
        assert!(budget.take(3).is_none() && budget.has(1), "what is refused takes nothing");
        second.shrink(1);
        second.shrink(5);
        assert!(budget.has(3) && !budget.has(4), "it does not grow");
        drop(first);
        assert!(budget.has(6) && !budget.has(7));
        drop(second);
        assert!(budget.take(7).is_some());
        assert!(LaneBudget::new(0).take(1).is_none() && LaneBudget::new(0).take(0).is_some());
    }
}
