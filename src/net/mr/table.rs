//! The address ranges that NCCL has registered, and the memory region that serves each.
//!
//! A range within a registered one shares its region: registered memory stays mapped, so the region
//! still has the pages at these addresses. Only registered ranges count, not regions: a part of a
//! region without a registered range may be other memory by now.

use crate::error::Result;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Kind of registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryKind {
    /// Host memory.
    Host,
    /// GPU memory.
    Gpu,
}

/// The addresses from `start` to before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryRange {
    /// Kind of memory.
    pub kind: MemoryKind,
    /// The first address.
    pub start: u64,
    /// The first address after the range.
    pub end: u64,
}

/// Registered ranges, each with the region `R` that serves it.
#[derive(Debug)]
pub struct MrTable<R> {
    table: Mutex<Table<R>>,
}

#[derive(Debug)]
struct Table<R> {
    entries: BTreeMap<MemoryRange, Entry<R>>,
    /// Length of the longest range, or more.
    longest: u64,
}

#[derive(Debug)]
struct Entry<R> {
    region: Arc<R>,
    users: usize,
}

impl<R> Default for MrTable<R> {
    fn default() -> Self {
        Self { table: Mutex::new(Table { entries: BTreeMap::new(), longest: 0 }) }
    }
}

impl<R> MrTable<R> {
    /// Adds `range` until [`Self::release`]. It uses the region of a range around it, or else a new
    /// one from `make`.
    ///
    /// # Errors
    /// `make` fails; then nothing is added.
    pub fn acquire(&self, range: MemoryRange, make: impl FnOnce() -> Result<R>) -> Result<Arc<R>> {
        if let Some(region) = self.lock().share(range) {
            return Ok(region);
        }
        // The lock is not held, since registration can take milliseconds. Two threads may both
        // create a region for a range; the one that is added first is used.
        let made = Arc::new(make()?);
        let mut table = self.lock();
        let region = table.share(range).unwrap_or_else(|| table.add(range, Arc::clone(&made)));
        drop(table);
        // An unused region is deregistered here, without the lock.
        drop(made);
        Ok(region)
    }

    /// Undoes one [`Self::acquire`] of `range`.
    pub fn release(&self, range: MemoryRange) {
        let gone = self.lock().remove(range);
        // Without the lock, as above.
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, Table<R>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R> Table<R> {
    /// Adds `range` with the region of an entry that equals or contains it.
    fn share(&mut self, range: MemoryRange) -> Option<Arc<R>> {
        if let Some(entry) = self.entries.get_mut(&range) {
            entry.users += 1;
            return Some(Arc::clone(&entry.region));
        }
        let region = Arc::clone(self.around(range)?);
        Some(self.add(range, region))
    }

    /// The region of an entry that equals or contains `range`.
    fn around(&self, range: MemoryRange) -> Option<&Arc<R>> {
        let MemoryRange { kind, start, end } = range;
        let first = MemoryRange { kind, start: end.saturating_sub(self.longest), end: 0 };
        let last = MemoryRange { kind, start, end: u64::MAX };
        let before = (first <= last).then(|| self.entries.range(first..=last));
        before
            .into_iter()
            .flatten()
            .rev()
            .find(|(range, _)| range.end >= end)
            .map(|(_, entry)| &entry.region)
    }

    fn add(&mut self, range: MemoryRange, region: Arc<R>) -> Arc<R> {
        self.longest = self.longest.max(range.end - range.start);
        self.entries.insert(range, Entry { region: Arc::clone(&region), users: 1 });
        region
    }

    fn remove(&mut self, range: MemoryRange) -> Option<Arc<R>> {
        let entry = self.entries.get_mut(&range)?;
        entry.users -= 1;
        if entry.users > 0 {
            return None;
        }
        let gone = self.entries.remove(&range).map(|entry| entry.region);
        if self.entries.is_empty() {
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

    fn range(kind: MemoryKind, start: u64, pages: u64) -> MemoryRange {
        MemoryRange { kind, start, end: start + pages }
    }

    /// The generation of each page when it was registered.
    type Pinned = Vec<(u64, u32)>;

    /// A machine whose pages become other memory as soon as no registered range covers them.
    #[derive(Default)]
    struct Machine {
        generation: [[u32; PAGES as usize]; 2],
        held: Vec<(MemoryRange, Arc<Pinned>)>,
    }

    impl Machine {
        fn pin(&self, range: MemoryRange) -> Pinned {
            (range.start..range.end)
                .map(|page| (page, self.generation[range.kind as usize][page as usize]))
                .collect()
        }

        fn remap_unregistered_pages(&mut self) {
            for kind in [MemoryKind::Host, MemoryKind::Gpu] {
                for page in 0..PAGES {
                    let is_registered = |(r, _): &(MemoryRange, _)| {
                        r.kind == kind && (r.start..r.end).contains(&page)
                    };
                    if !self.held.iter().any(is_registered) {
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
        fn every_range_is_served_by_the_memory_at_its_addresses(steps in prop::collection::vec(step(), 1..120)) {
            let table = MrTable::<Pinned>::default();
            let mut machine = Machine::default();
            for step in steps {
                match step {
                    Step::Claim(gpu, start, pages) => {
                        let wanted = range(if gpu { MemoryKind::Gpu } else { MemoryKind::Host }, start, pages);
                        let around = machine.held.iter().any(|(r, _)| {
                            r.kind == wanted.kind && r.start <= wanted.start && wanted.end <= r.end
                        });
                        let mut made = false;
                        let region = table.acquire(wanted, || { made = true; Ok(machine.pin(wanted)) });
                        prop_assert_eq!(made, !around, "registered anew only where no registered range is around");
                        machine.held.push((wanted, region.expect("made")));
                    }
                    Step::Fail(start, pages) => {
                        let wanted = range(MemoryKind::Host, start, pages);
                        if let Ok(region) = table.acquire(wanted, || Err(Error::internal("no"))) {
                            machine.held.push((wanted, region));
                        }
                    }
                    Step::Release(index) if !machine.held.is_empty() => {
                        let (gone, region) = machine.held.swap_remove(index.index(machine.held.len()));
                        drop(region);
                        table.release(gone);
                        machine.remap_unregistered_pages();
                    }
                    Step::Release(_) => {}
                }
                for (range, region) in &machine.held {
                    for expected in machine.pin(*range) {
                        prop_assert!(region.contains(&expected), "{:?} is served by other memory", range);
                    }
                }
            }
            let regions: Vec<_> = machine.held.iter().map(|(_, region)| Arc::downgrade(region)).collect();
            for (range, region) in machine.held.drain(..) {
                drop(region);
                table.release(range);
            }
            prop_assert!(regions.iter().all(|region| region.strong_count() == 0), "nothing stays registered");
            let table = table.lock();
            prop_assert_eq!((table.entries.len(), table.longest), (0, 0));
        }
    }

    #[test]
    fn of_two_simultaneous_registrations_one_is_used() {
        let (table, inside, made) =
            (MrTable::<usize>::default(), Barrier::new(2), AtomicUsize::new(0));
        let wanted = range(MemoryKind::Host, 3, 4);
        let make = || {
            // Passes only if both threads are here at once, so that the lock is not held.
            inside.wait();
            Ok(made.fetch_add(1, Ordering::SeqCst))
        };
        let [a, b] = std::thread::scope(|scope| {
            let both = [
                scope.spawn(|| table.acquire(wanted, make)),
                scope.spawn(|| table.acquire(wanted, make)),
            ];
            both.map(|thread| thread.join().expect("no panic").expect("made"))
        });
        assert!(Arc::ptr_eq(&a, &b) && made.load(Ordering::SeqCst) == 2);
        assert_eq!(
            Arc::strong_count(&a),
            3,
            "the other region is gone: these are two handles and the table's"
        );
        table.release(wanted);
        assert_eq!(Arc::strong_count(&a), 3, "still entered once");
        table.release(wanted);
        assert_eq!(Arc::strong_count(&a), 2);
    }

    /// A region lives as long as a range that it serves is present.
    #[test]
    fn regions_live_as_long_as_their_ranges_with_many_threads() {
        struct Region<'a>(MemoryRange, &'a AtomicUsize);
        impl Drop for Region<'_> {
            fn drop(&mut self) {
                self.1.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let (live, made) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let table = MrTable::default();
        std::thread::scope(|scope| {
            for seed in 0..4u64 {
                let (table, live, made) = (&table, &live, &made);
                scope.spawn(move || {
                    let mut state = seed * 7919 + 1;
                    let mut held = Vec::new();
                    for _ in 0..3000 {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        let wanted = range(MemoryKind::Host, state >> 60, 1 + (state >> 56) % 8);
                        let region = table.acquire(wanted, || {
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
                            table.release(held.swap_remove((state >> 40) as usize % held.len()));
                        }
                    }
                    held.into_iter().for_each(|range| table.release(range));
                });
            }
        });
        assert_eq!(live.load(Ordering::SeqCst), 0);
        assert!(made.load(Ordering::SeqCst) < 12_000, "some were shared");
    }
}
