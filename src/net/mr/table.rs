//! Which registered memory is in use: claims of address ranges, and the region that serves each.
//!
//! A new claim that lies within a live one is served by the same region: what is claimed stays mapped, so the region's
//! pages are still those of the addresses. Nothing is concluded from a region alone: the part of it that nobody
//! claims any more may be other memory by now.

use crate::error::Result;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where registered memory lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryKind {
    /// Host memory.
    Host,
    /// GPU memory.
    Gpu,
}

/// Addresses from `start` to before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// Where it lives.
    pub kind: MemoryKind,
    /// The first address.
    pub start: u64,
    /// The first address that does not belong to it.
    pub end: u64,
}

/// Ranges in use, each with the region `R` that serves it.
#[derive(Debug)]
pub struct MrTable<R> {
    table: Mutex<Table<R>>,
}

#[derive(Debug)]
struct Table<R> {
    claims: BTreeMap<Range, Claim<R>>,
    /// No claim is longer.
    longest: u64,
}

#[derive(Debug)]
struct Claim<R> {
    region: Arc<R>,
    holders: usize,
}

impl<R> Default for MrTable<R> {
    fn default() -> Self {
        Self { table: Mutex::new(Table { claims: BTreeMap::new(), longest: 0 }) }
    }
}

impl<R> MrTable<R> {
    /// MrTable `range`, until [`Self::release`]; its region is that of a claim around it, or else what `make` makes.
    ///
    /// # Errors
    /// What `make` says; nothing is claimed then.
    pub fn claim(&self, range: Range, make: impl FnOnce() -> Result<R>) -> Result<Arc<R>> {
        if let Some(region) = self.lock().join(range) {
            return Ok(region);
        }
        // The lock is not held: it can take milliseconds. Two threads may both make one; the first to come back is used.
        let made = Arc::new(make()?);
        let mut table = self.lock();
        let region = table.join(range).unwrap_or_else(|| table.add(range, Arc::clone(&made)));
        drop(table);
        // What is not used goes here, after the lock.
        drop(made);
        Ok(region)
    }

    /// Gives back one claim of `range`.
    pub fn release(&self, range: Range) {
        let gone = self.lock().leave(range);
        // After the lock, too.
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, Table<R>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R> Table<R> {
    /// MrTable `range` with the region of a claim that it is, or lies within.
    fn join(&mut self, range: Range) -> Option<Arc<R>> {
        if let Some(claim) = self.claims.get_mut(&range) {
            claim.holders += 1;
            return Some(Arc::clone(&claim.region));
        }
        let Range { kind, start, end } = range;
        let first = Range { kind, start: end.saturating_sub(self.longest), end: 0 };
        let last = Range { kind, start, end: u64::MAX };
        let before = (first <= last).then(|| self.claims.range(first..=last));
        let around = before.into_iter().flatten().rev().find(|(claimed, _)| claimed.end >= end);
        let region = around.map(|(_, claim)| Arc::clone(&claim.region))?;
        Some(self.add(range, region))
    }

    fn add(&mut self, range: Range, region: Arc<R>) -> Arc<R> {
        self.longest = self.longest.max(range.end - range.start);
        self.claims.insert(range, Claim { region: Arc::clone(&region), holders: 1 });
        region
    }

    fn leave(&mut self, range: Range) -> Option<Arc<R>> {
        let claim = self.claims.get_mut(&range)?;
        claim.holders -= 1;
        if claim.holders > 0 {
            return None;
        }
        let gone = self.claims.remove(&range).map(|claim| claim.region);
        if self.claims.is_empty() {
            self.longest = 0;
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use proptest::prelude::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    const PAGES: u64 = 24;

    fn range(kind: MemoryKind, start: u64, pages: u64) -> Range {
        Range { kind, start, end: start + pages }
    }

    /// Which memory was at each page when it was registered.
    type Pinned = Vec<(u64, u32)>;

    /// Memory that becomes other memory as soon as nobody claims it.
    #[derive(Default)]
    struct Machine {
        generation: [[u32; PAGES as usize]; 2],
        held: Vec<(Range, Arc<Pinned>)>,
    }

    impl Machine {
        fn pin(&self, range: Range) -> Pinned {
            (range.start..range.end).map(|page| (page, self.generation[range.kind as usize][page as usize])).collect()
        }

        fn remap_what_nobody_claims(&mut self) {
            for kind in [MemoryKind::Host, MemoryKind::Gpu] {
                for page in 0..PAGES {
                    let is_claimed = |(r, _): &(Range, _)| r.kind == kind && (r.start..r.end).contains(&page);
                    if !self.held.iter().any(is_claimed) {
                        self.generation[kind as usize][page as usize] += 1;
                    }
                }
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Claim(bool, u64, u64),
        Fail(u64, u64),
        Release(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        let span = (0..PAGES - 8, 1..8u64);
        prop_oneof![
            4 => (any::<bool>(), span.clone()).prop_map(|(gpu, (start, pages))| Step::Claim(gpu, start, pages)),
            1 => span.prop_map(|(start, pages)| Step::Fail(start, pages)),
            3 => any::<prop::sample::Index>().prop_map(Step::Release),
        ]
    }

    proptest! {
        #[test]
        fn every_claim_is_served_by_the_memory_that_is_there(steps in prop::collection::vec(step(), 1..120)) {
            let claims = MrTable::<Pinned>::default();
            let mut machine = Machine::default();
            for step in steps {
                match step {
                    Step::Claim(gpu, start, pages) => {
                        let wanted = range(if gpu { MemoryKind::Gpu } else { MemoryKind::Host }, start, pages);
                        let around = machine.held.iter().any(|(r, _)| {
                            r.kind == wanted.kind && r.start <= wanted.start && wanted.end <= r.end
                        });
                        let mut made = false;
                        let region = claims.claim(wanted, || { made = true; Ok(machine.pin(wanted)) });
                        prop_assert_eq!(made, !around, "made anew only where no live claim is around");
                        machine.held.push((wanted, region.expect("made")));
                    }
                    Step::Fail(start, pages) => {
                        let wanted = range(MemoryKind::Host, start, pages);
                        if let Ok(region) = claims.claim(wanted, || Err(Error::internal("no"))) {
                            machine.held.push((wanted, region));
                        }
                    }
                    Step::Release(index) if !machine.held.is_empty() => {
                        let (gone, region) = machine.held.swap_remove(index.index(machine.held.len()));
                        drop(region);
                        claims.release(gone);
                        machine.remap_what_nobody_claims();
                    }
                    Step::Release(_) => {}
                }
                for (claimed, region) in &machine.held {
                    for expected in machine.pin(*claimed) {
                        prop_assert!(region.contains(&expected), "{:?} is served by other memory", claimed);
                    }
                }
            }
            let regions: Vec<_> = machine.held.iter().map(|(_, region)| Arc::downgrade(region)).collect();
            for (claimed, region) in machine.held.drain(..) {
                drop(region);
                claims.release(claimed);
            }
            prop_assert!(regions.iter().all(|region| region.strong_count() == 0), "nothing stays registered");
            let table = claims.lock();
            prop_assert_eq!((table.claims.len(), table.longest), (0, 0));
        }
    }

    #[test]
    fn two_threads_register_at_once_and_one_result_is_used() {
        let (claims, inside, made) = (MrTable::<usize>::default(), Barrier::new(2), AtomicUsize::new(0));
        let wanted = range(MemoryKind::Host, 3, 4);
        let make = || {
            // Passes only if both are in here at once: the lock is not held.
            inside.wait();
            Ok(made.fetch_add(1, Ordering::SeqCst))
        };
        let [a, b] = std::thread::scope(|scope| {
            let both = [scope.spawn(|| claims.claim(wanted, make)), scope.spawn(|| claims.claim(wanted, make))];
            both.map(|thread| thread.join().expect("no panic").expect("made"))
        });
        assert!(Arc::ptr_eq(&a, &b) && made.load(Ordering::SeqCst) == 2);
        assert_eq!(Arc::strong_count(&a), 3, "the other one is gone: two handles and the table's");
        claims.release(wanted);
        assert_eq!(Arc::strong_count(&a), 3, "still claimed once");
        claims.release(wanted);
        assert_eq!(Arc::strong_count(&a), 2);
    }

    /// A region is alive for as long as somebody may use it, whatever the others do.
    #[test]
    fn many_threads_claim_and_release() {
        struct Region<'a>(Range, &'a AtomicUsize);
        impl Drop for Region<'_> {
            fn drop(&mut self) {
                self.1.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let (live, made) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let claims = MrTable::default();
        std::thread::scope(|scope| {
            for seed in 0..4u64 {
                let (claims, live, made) = (&claims, &live, &made);
                scope.spawn(move || {
                    let mut state = seed * 7919 + 1;
                    let mut held = Vec::new();
                    for _ in 0..3000 {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let wanted = range(MemoryKind::Host, state >> 60, 1 + (state >> 56) % 8);
                        let region = claims.claim(wanted, || {
                            live.fetch_add(1, Ordering::SeqCst);
                            if made.fetch_add(1, Ordering::SeqCst).is_multiple_of(64) {
                                std::thread::sleep(Duration::from_micros(50));
                            }
                            Ok(Region(wanted, live))
                        });
                        let region = region.expect("made");
                        assert!(region.0.start <= wanted.start && wanted.end <= region.0.end);
                        held.push(wanted);
                        drop(region);
                        if held.len() > 5 {
                            claims.release(held.swap_remove((state >> 40) as usize % held.len()));
                        }
                    }
                    held.into_iter().for_each(|claimed| claims.release(claimed));
                });
            }
        });
        assert_eq!(live.load(Ordering::SeqCst), 0);
        assert!(made.load(Ordering::SeqCst) < 12_000, "some were shared");
    }
}
