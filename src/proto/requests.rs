//! A fixed table of requests with constant-time allocation and ids that expire.

use super::{MAX_REQUESTS, Violation, violation};

/// Names one use of one entry of a [`Requests`] table. Stale ids, from before the entry was released, are recognised.
///
/// ```text
/// bit 31            8 7      0
///      generation (24) index
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct RequestId(u32);

const _: () = assert!(MAX_REQUESTS == 1 << 8, "an index is one byte of an id");

impl RequestId {
    /// Index of the entry, below [`MAX_REQUESTS`].
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0 as u8)
    }

    /// 32 bits for a work request's id.
    #[inline]
    pub fn to_bits(self) -> u32 {
        self.0
    }

    /// The id behind [`Self::to_bits`].
    #[inline]
    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The same entry, one generation later.
    #[inline]
    fn next(self) -> Self {
        Self(self.0.wrapping_add(1 << 8))
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry<T> {
    /// The id in use. While the entry is free, its generation is odd, and those are never given out: no id finds it.
    id: RequestId,
    /// The entry that is taken after this one, when free; [`MAX_REQUESTS`] after the last.
    next_free: u16,
    value: T,
}

impl<T> Entry<T> {
    /// Whether it is in use.
    fn is_live(&self) -> bool {
        self.id.0 >> 8 & 1 == 0
    }
}

/// [`MAX_REQUESTS`] entries, allocated once.
#[derive(Debug)]
pub struct Requests<T> {
    entries: Box<[Entry<T>; MAX_REQUESTS]>,
    first_free: u16,
}

impl<T: Copy + Default> Default for Requests<T> {
    fn default() -> Self {
        let entry =
            |index| Entry { id: RequestId(index as u32).next(), next_free: index as u16 + 1, value: T::default() };
        Self { entries: Box::new(std::array::from_fn(entry)), first_free: 0 }
    }
}

impl<T> Requests<T> {
    /// Takes a free entry, whose value is that of an earlier use; `None` when all are in use.
    #[inline]
    pub fn allocate(&mut self) -> Option<(RequestId, &mut T)> {
        let entry = self.entries.get_mut(usize::from(self.first_free))?;
        self.first_free = entry.next_free;
        entry.id = entry.id.next();
        Some((entry.id, &mut entry.value))
    }

    /// Whether all are in use.
    #[inline]
    pub fn is_exhausted(&self) -> bool {
        usize::from(self.first_free) >= MAX_REQUESTS
    }

    /// Whether no entry is in use; looks at all of them.
    pub fn are_all_free(&self) -> bool {
        !self.entries.iter().any(Entry::is_live)
    }

    /// The entries in use, by index.
    pub fn live(&self) -> impl Iterator<Item = (RequestId, &T)> {
        self.entries.iter().filter(|entry| entry.is_live()).map(|entry| (entry.id, &entry.value))
    }

    /// As [`Self::live`], to be changed.
    pub fn live_mut(&mut self) -> impl Iterator<Item = (RequestId, &mut T)> {
        self.entries.iter_mut().filter(|entry| entry.is_live()).map(|entry| (entry.id, &mut entry.value))
    }

    /// The value of a live id.
    #[inline]
    pub fn get(&self, id: RequestId) -> Option<&T> {
        let entry = &self.entries[id.index()];
        (entry.id == id).then_some(&entry.value)
    }

    /// The value of a live id, to be changed.
    #[inline]
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut T> {
        let entry = &mut self.entries[id.index()];
        (entry.id == id).then_some(&mut entry.value)
    }

    /// Whether a live id's value is what `is_done` asks for.
    ///
    /// # Errors
    /// The id is stale.
    #[inline]
    pub fn check(&self, id: RequestId, is_done: impl FnOnce(&T) -> bool) -> Result<bool, Violation> {
        let entry = &self.entries[id.index()];
        if entry.id == id { Ok(is_done(&entry.value)) } else { Err(tested_after_its_end(id)) }
    }

    /// Gives a live id's entry back if `is_done` says so of its value; the id is stale from then on. The value, or `None`
    /// if it is not done yet.
    ///
    /// # Errors
    /// The id is stale.
    #[inline]
    pub fn release_if(&mut self, id: RequestId, is_done: impl FnOnce(&T) -> bool) -> Result<Option<&T>, Violation> {
        let entry = &mut self.entries[id.index()];
        if entry.id != id {
            return Err(tested_after_its_end(id));
        }
        if !is_done(&entry.value) {
            return Ok(None);
        }
        entry.id = id.next();
        entry.next_free = self.first_free;
        self.first_free = id.index() as u16;
        Ok(Some(&entry.value))
    }
}

#[cold]
#[inline(never)]
fn tested_after_its_end(id: RequestId) -> Violation {
    violation!("{id:?} was tested after its end")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocate<T>(table: &mut Requests<T>, value: T) -> Option<RequestId> {
        let (id, place) = table.allocate()?;
        *place = value;
        Some(id)
    }

    #[test]
    fn all_entries_can_be_taken_and_the_next_must_wait() {
        let mut table = Requests::default();
        let ids: Vec<_> = (0..MAX_REQUESTS).map(|i| allocate(&mut table, i).expect("a free entry")).collect();
        assert_eq!(allocate(&mut table, 0), None);
        for (i, id) in ids.iter().enumerate() {
            assert_eq!(table.get_mut(*id), Some(&mut { i }));
        }
        assert_eq!(table.release_if(ids[7], |_| false), Ok(None));
        assert_eq!(allocate(&mut table, 0), None);
        assert_eq!(table.release_if(ids[7], |i| *i == 7), Ok(Some(&7)));
        assert!(allocate(&mut table, 7).is_some());
    }

    #[test]
    fn a_stale_id_finds_nothing_and_frees_nothing() {
        let mut table = Requests::default();
        assert!(table.are_all_free());
        let old = allocate(&mut table, 1).expect("a free entry");
        assert!(!table.are_all_free());
        assert_eq!(table.release_if(old, |_| true), Ok(Some(&1)));
        assert!(table.are_all_free());
        assert_eq!(table.get_mut(old), None, "the entry is free");
        let new = allocate(&mut table, 2).expect("a free entry");
        assert_eq!(old.index(), new.index());
        assert_eq!(table.get_mut(old), None);
        assert!(table.release_if(old, |_| true).is_err());
        assert_eq!(table.get_mut(new), Some(&mut 2));
    }

    #[test]
    fn an_id_that_was_never_given_out_finds_nothing() {
        let mut table = Requests::<()>::default();
        for index in 0..=255 {
            assert_eq!(table.get_mut(RequestId::from_bits(index)), None);
        }
    }

    #[test]
    fn an_id_survives_a_work_request() {
        let mut table = Requests::default();
        for _ in 0..1000 {
            let id = allocate(&mut table, ()).expect("a free entry");
            assert_eq!(RequestId::from_bits(id.to_bits()), id);
            assert!(table.release_if(id, |()| true).is_ok());
        }
    }
}
