//! Requests: a fixed table with constant-time allocation and ids that expire, and the state of a
//! request at each end.

use super::shared::Shared;
use super::{MAX_GROUP, MAX_REQUESTS, Violation, violation};
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;

/// Names one use of one entry of a [`Requests`] table. Stale ids, from before the entry was
/// released, are recognised.
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

    /// The id as 32 bits, for a work request's id.
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

/// An entry, which NCCL's request points to. It begins with what the interface to NCCL needs.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Entry<T> {
    front: Front,
    /// When free: the entry that is taken after this one; [`MAX_REQUESTS`] after the last.
    next_free: Shared<u16>,
    /// The index of this entry.
    index: u16,
    /// The request's state. While the entry is free, it is that of an earlier use.
    pub value: T,
}

/// The beginning of an entry.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Front {
    /// Identifies it to `abi` as a request.
    pub tag: Shared<u32>,
    /// The id in use. While the entry is free, its generation is odd and was never given out, so no
    /// id finds it.
    id: Shared<u32>,
    /// The function of `abi` that tests the request.
    pub test: AtomicPtr<()>,
    /// The communicator, of a type of `abi`.
    pub comm: AtomicPtr<()>,
}

impl<T> Entry<T> {
    /// Its beginning.
    #[inline]
    pub fn front(&self) -> &Front {
        &self.front
    }

    /// The id in use.
    #[inline]
    pub fn id(&self) -> RequestId {
        RequestId(self.front.id.get())
    }

    /// Whether it is in use.
    fn is_live(&self) -> bool {
        self.front.id.get() >> 8 & 1 == 0
    }

    /// The error for a request that has ended.
    #[cold]
    #[inline(never)]
    pub(super) fn ended(&self) -> Violation {
        tested_after_its_end(RequestId(self.front.id.get().wrapping_sub(1 << 8)))
    }
}

/// The result of a request, for NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestResult {
    /// It is not complete.
    Pending,
    /// It was complete, with one message of this many bytes, and has ended now.
    Finished(u32),
    /// It has ended before, or is a receive for a group whose messages have all arrived.
    Other,
}

/// The entries of a table.
pub type Entries<T> = Arc<[Entry<T>; MAX_REQUESTS]>;

/// [`MAX_REQUESTS`] entries, allocated once.
#[derive(Debug)]
pub struct Requests<T> {
    entries: Entries<T>,
    first_free: u16,
}

impl<T: Default> Default for Requests<T> {
    fn default() -> Self {
        let entry = |index| Entry {
            front: Front { id: Shared::new(RequestId(index as u32).next().0), ..Front::default() },
            next_free: Shared::new(index as u16 + 1),
            index: index as u16,
            value: T::default(),
        };
        Self { entries: Arc::new(std::array::from_fn(entry)), first_free: 0 }
    }
}

impl<T> Requests<T> {
    /// All entries.
    pub fn entries(&self) -> &Entries<T> {
        &self.entries
    }

    /// Takes a free entry, which has the value of an earlier use; `None` when all are in use.
    #[inline(always)]
    pub fn allocate(&mut self) -> Option<&Entry<T>> {
        let entry = self.entries.get(usize::from(self.first_free))?;
        debug_assert!(!entry.is_live());
        self.first_free = entry.next_free.get();
        entry.front.id.set(entry.id().next().0);
        Some(entry)
    }

    /// Whether all are in use.
    #[inline]
    pub fn is_exhausted(&self) -> bool {
        usize::from(self.first_free) >= MAX_REQUESTS
    }

    /// Whether no entry is in use; scans all of them.
    pub fn are_all_free(&self) -> bool {
        !self.entries.iter().any(Entry::is_live)
    }

    /// The entries in use, by index.
    pub fn live(&self) -> impl Iterator<Item = (RequestId, &T)> {
        self.entries.iter().filter(|entry| entry.is_live()).map(|entry| (entry.id(), &entry.value))
    }

    /// The value of a live id.
    #[inline]
    pub fn get(&self, id: RequestId) -> Option<&T> {
        self.entry(id).map(|entry| &entry.value)
    }

    /// [`Self::get`] for a request that has not completed, and so is live.
    #[inline(always)]
    pub(super) fn get_live(&self, id: RequestId) -> &T {
        let entry = &self.entries[id.index()];
        debug_assert!(entry.id() == id && entry.is_live(), "{id:?} has ended");
        &entry.value
    }

    /// The entry of a live id.
    #[inline]
    pub fn entry(&self, id: RequestId) -> Option<&Entry<T>> {
        let entry = &self.entries[id.index()];
        (entry.id() == id).then_some(entry)
    }

    /// [`Self::entry`] for an id that NCCL tests.
    ///
    /// # Errors
    /// The id is stale.
    pub fn tested(&self, id: RequestId) -> Result<&Entry<T>, Violation> {
        self.entry(id).filter(|entry| entry.is_live()).ok_or_else(|| tested_after_its_end(id))
    }

    /// Frees the entry of a live id, which is stale from then on.
    #[inline(always)]
    pub fn release(&mut self, entry: &Entry<T>) {
        free(entry, &mut self.first_free);
    }

    /// [`Self::release`] for the entry of `id`, if that is live.
    pub fn release_id(&mut self, id: RequestId) {
        let Self { entries, first_free } = self;
        let entry = &entries[id.index()];
        if entry.id() == id && entry.is_live() {
            free(entry, first_free);
        }
    }
}

/// Makes this used entry the first free one.
#[inline(always)]
fn free<T>(entry: &Entry<T>, first_free: &mut u16) {
    debug_assert!(entry.is_live());
    entry.front.id.add(1 << 8);
    entry.next_free.set(*first_free);
    *first_free = entry.index;
}

#[cold]
#[inline(never)]
fn tested_after_its_end(id: RequestId) -> Violation {
    violation!("{id:?} was tested after its end")
}

/// A send request.
#[derive(Debug)]
pub struct SendRequest {
    /// The address of its bytes in this process.
    pub(super) addr: Shared<u64>,
    /// Sequence number of the clear-to-send that it has claimed.
    pub(super) seq: Shared<u32>,
    pub(super) length: Shared<u32>,
    /// Unacknowledged stripes; [`Self::ENDED`] once NCCL got the result.
    pub(super) pending_stripes: Shared<i32>,
    /// The poll in which the second-to-last stripe completed.
    pub(super) poll: Shared<u32>,
}

impl Default for SendRequest {
    fn default() -> Self {
        let [seq, length, poll] = Default::default();
        Self {
            addr: Shared::default(),
            seq,
            length,
            pending_stripes: Shared::new(Self::ENDED),
            poll,
        }
    }
}

impl SendRequest {
    /// The request has ended.
    const ENDED: i32 = -1;

    /// Whether it has begun, and is not fully acknowledged.
    #[inline(always)]
    pub fn is_pending(&self) -> bool {
        self.pending_stripes.get() > 0
    }

    /// Ends it: NCCL got the result.
    #[inline(always)]
    pub(super) fn end(&self) {
        self.pending_stripes.set(Self::ENDED);
    }

    /// Begins message `seq`.
    #[inline(always)]
    pub(super) fn begin(&self, seq: u32, addr: u64, length: u32, stripes: u32) {
        debug_assert!(stripes > 0 && self.pending_stripes.get() == Self::ENDED);
        self.length.set(length);
        self.pending_stripes.set(stripes as i32);
        self.addr.set(addr);
        self.seq.set(seq);
    }
}

/// A receive request: the number of its messages, how many have not arrived, and the bytes of those
/// that have.
#[derive(Debug)]
pub struct RecvRequest {
    /// [`Self::ENDED`] once NCCL got the result.
    pub(super) pending: Shared<i8>,
    pub(super) count: Shared<u8>,
    pub(super) lengths: [Shared<u32>; MAX_GROUP],
}

impl Default for RecvRequest {
    fn default() -> Self {
        Self {
            pending: Shared::new(Self::ENDED),
            count: Shared::default(),
            lengths: Default::default(),
        }
    }
}

impl RecvRequest {
    /// The request has ended.
    const ENDED: i8 = -1;

    /// Whether it has begun, and some of its messages have not arrived.
    #[inline(always)]
    pub fn is_pending(&self) -> bool {
        self.pending.get() > 0
    }

    /// Ends it: NCCL got the result.
    #[inline(always)]
    pub(super) fn end(&self) {
        self.pending.set(Self::ENDED);
    }

    /// Begins a group of `count` messages.
    #[inline(always)]
    pub(super) fn begin(&self, count: u8) {
        debug_assert!(count > 0 && self.pending.get() == Self::ENDED);
        self.count.set(count);
        self.pending.set(count as i8);
    }

    /// Handles that message number `index`, of `length` bytes, has arrived.
    #[inline(always)]
    pub(super) fn complete(&self, index: u8, length: u32) {
        debug_assert!(index < self.count.get() && self.is_pending());
        self.lengths[usize::from(index) % MAX_GROUP].set(length);
        self.pending.add(-1);
    }
}

/// A receive request that is complete.
#[derive(Debug, Clone, Copy)]
pub enum Finished {
    /// It was for one message of this many bytes.
    One(u32),
    /// It was for a group.
    Group,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of shared numbers.
    type Numbers = Requests<Shared<u32>>;

    fn allocate(table: &mut Numbers, value: u32) -> Option<RequestId> {
        let entry = table.allocate()?;
        entry.value.set(value);
        Some(entry.id())
    }

    fn get(table: &Numbers, id: RequestId) -> Option<u32> {
        table.get(id).map(Shared::<u32>::get)
    }

    #[test]
    fn all_entries_can_be_taken_and_the_next_must_wait() {
        let mut table = Numbers::default();
        let ids: Vec<_> = (0..MAX_REQUESTS as u32)
            .map(|i| allocate(&mut table, i).expect("a free entry"))
            .collect();
        assert_eq!(allocate(&mut table, 0), None);
        for (i, id) in ids.iter().enumerate() {
            assert_eq!(get(&table, *id), Some(i as u32));
        }
        table.release_id(ids[7]);
        assert!(allocate(&mut table, 7).is_some());
        assert_eq!(allocate(&mut table, 0), None);
    }

    #[test]
    fn a_stale_id_finds_nothing_and_frees_nothing() {
        let mut table = Numbers::default();
        assert!(table.are_all_free());
        let old = allocate(&mut table, 1).expect("a free entry");
        assert!(!table.are_all_free());
        table.release_id(old);
        assert!(table.are_all_free());
        assert_eq!(get(&table, old), None, "the entry is free");
        assert!(table.tested(old.next()).is_err(), "so it is by the id that it has meanwhile");
        let new = allocate(&mut table, 2).expect("a free entry");
        assert_eq!(old.index(), new.index());
        assert_eq!(get(&table, old), None);
        assert!(table.tested(old).is_err());
        table.release_id(old);
        assert_eq!(get(&table, new), Some(2));
    }

    #[test]
    fn an_id_that_was_never_given_out_finds_nothing() {
        let table = Numbers::default();
        for index in 0..=255 {
            assert_eq!(get(&table, RequestId::from_bits(index)), None);
        }
    }
}
