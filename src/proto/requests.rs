//! A fixed table of requests with constant-time allocation and ids that expire.

use super::MAX_REQUESTS;

/// Names one use of one entry of a [`Requests`] table. Stale ids, from before the entry was released, are recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId {
    index: u8,
    generation: u32,
}

/// Bits of a generation that survive [`RequestId::to_bits`].
const GENERATION_BITS: u32 = 24;

impl RequestId {
    /// Index of the entry, below [`MAX_REQUESTS`].
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.index)
    }

    /// 32 bits for a work request's id.
    #[inline]
    pub fn to_bits(self) -> u32 {
        self.generation << 8 | u32::from(self.index)
    }

    /// The id behind [`Self::to_bits`].
    #[inline]
    pub fn from_bits(bits: u32) -> Self {
        Self { index: bits as u8, generation: bits >> 8 }
    }
}

const _: () = assert!(MAX_REQUESTS == 1 << 8, "an index is one byte of a work request's id");

#[derive(Debug, Clone, Copy)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// [`MAX_REQUESTS`] entries, allocated once.
#[derive(Debug)]
pub struct Requests<T> {
    entries: Box<[Entry<T>; MAX_REQUESTS]>,
    free: Box<[u8; MAX_REQUESTS]>,
    free_count: usize,
}

impl<T: Copy> Default for Requests<T> {
    fn default() -> Self {
        Self {
            entries: Box::new([Entry { generation: 0, value: None }; MAX_REQUESTS]),
            // Low indices are used first.
            free: Box::new(std::array::from_fn(|i| (MAX_REQUESTS - 1 - i) as u8)),
            free_count: MAX_REQUESTS,
        }
    }
}

impl<T: Copy> Requests<T> {
    /// Entries that are free.
    pub fn available(&self) -> usize {
        self.free_count
    }

    /// Takes a free entry; `None` when all are in use.
    #[inline]
    pub fn allocate(&mut self, value: T) -> Option<RequestId> {
        let index = *self.free[..self.free_count].last()?;
        self.free_count -= 1;
        let entry = &mut self.entries[usize::from(index)];
        entry.value = Some(value);
        Some(RequestId { index, generation: entry.generation })
    }

    /// The value of a live id.
    #[inline]
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut T> {
        let entry = &mut self.entries[id.index()];
        if entry.generation == id.generation { entry.value.as_mut() } else { None }
    }

    /// Gives a live id's entry back; the id is stale from then on.
    #[inline]
    pub fn release(&mut self, id: RequestId) {
        let entry = &mut self.entries[id.index()];
        if entry.generation == id.generation && entry.value.take().is_some() {
            entry.generation = (entry.generation + 1) & ((1 << GENERATION_BITS) - 1);
            self.free[self.free_count] = id.index;
            self.free_count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_entries_can_be_taken_and_the_next_must_wait() {
        let mut table = Requests::default();
        let ids: Vec<_> = (0..MAX_REQUESTS).map(|i| table.allocate(i).expect("a free entry")).collect();
        assert_eq!(table.allocate(0), None);
        for (i, id) in ids.iter().enumerate() {
            assert_eq!(table.get_mut(*id), Some(&mut { i }));
        }
        table.release(ids[7]);
        assert_eq!(table.available(), 1);
        assert!(table.allocate(7).is_some());
    }

    #[test]
    fn a_stale_id_finds_nothing_and_frees_nothing() {
        let mut table = Requests::default();
        let old = table.allocate(1).expect("a free entry");
        table.release(old);
        let new = table.allocate(2).expect("a free entry");
        assert_eq!(old.index(), new.index());
        assert_eq!(table.get_mut(old), None);
        table.release(old);
        assert_eq!(table.get_mut(new), Some(&mut 2));
    }

    #[test]
    fn an_id_survives_a_work_request() {
        let mut table = Requests::default();
        for _ in 0..1000 {
            let id = table.allocate(()).expect("a free entry");
            assert_eq!(RequestId::from_bits(id.to_bits()), id);
            table.release(id);
        }
    }
}
