//! Network operations that NCCL has begun and not ended: one for each of its operations, channel,
//! peer and direction.
//!
//! NCCL's progress threads write here once at the beginning and end of each, not for each message.
//! No thread waits for another: one atomic exchange takes or frees a slot, and a reader that sees a
//! slot change ignores it.

use super::handle::{self, Context, OperationId};
use super::place::{ENDED, FILLED, Place};
use crate::proto::explain::operation::Call;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most operations at a time; more are not recorded.
const MOST: usize = 4096;
/// The number of slots to try.
const TRIES: u64 = 16;
/// If all of these are taken, an operation loses its slot once this many others have begun after
/// it.
const OLD: u64 = 1 << 16;

static TABLE: [Place; MOST] =
    [const { Place { state: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; 3] } }; MOST];
/// The number of operations begun so far.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// By communicator: one more than the number of the last operation without a slot; 0 if all had
/// slots. Later operations are not reported for a while, since that one may be older. Communicators
/// may share an entry.
static LOST: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

fn lost(id: u64) -> &'static AtomicU64 {
    &LOST[(id % LOST.len() as u64) as usize]
}

/// Peer and direction of a network operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAndDirection {
    /// The peer's rank in the communicator.
    pub peer: u32,
    /// Whether this process sends to the peer; otherwise it receives.
    pub is_send: bool,
    /// NCCL's channel.
    pub channel: u8,
    /// The lower 22 bits of the rank that owns the operation. It is another process's rank if this
    /// process sends on its behalf (PXN).
    pub rank: u32,
}

impl PeerAndDirection {
    /// NCCL has separate connections for point-to-point operations. Operations of one communicator
    /// with equal bits use one connection, and NCCL ends them in order.
    fn to_bits(self, is_point_to_point: bool) -> u64 {
        let Self { peer, is_send, channel, rank } = self;
        let flags = u64::from(is_send) | u64::from(is_point_to_point) << 1;
        u64::from(peer) | flags << 32 | u64::from(channel) << 34 | u64::from(rank) << 42
    }
}

/// A network operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NetOperation {
    /// Orders operations by their beginning.
    pub(super) ordinal: u64,
    pub(super) call: Call,
    /// The lower 48 bits of the communicator's number.
    pub(super) communicator: u64,
    pub(super) peer: u32,
    pub(super) is_send: bool,
}

/// The content of a slot.
#[derive(Debug, Clone, Copy)]
struct SlotContent {
    state: u64,
    way: u64,
    operation: NetOperation,
}

impl NetOperation {
    /// Whether it is a send or a receive.
    pub(super) fn is_point_to_point(&self) -> bool {
        self.call.function.is_point_to_point()
    }

    /// Whether an older operation of its communicator, which found no slot, may still be in
    /// progress.
    fn is_after_lost(&self) -> bool {
        let lost = lost(self.communicator).load(Ordering::Relaxed);
        lost != 0 && self.ordinal.wrapping_sub(lost - 1) & OperationId::ORDINAL < OLD
    }
}

impl SlotContent {
    /// The operation in `place`, if any.
    fn of(place: &Place) -> Option<Self> {
        Self::from_words(place.read()?)
    }

    fn from_words((state, [call, communicator, way]): (u64, [u64; 3])) -> Option<Self> {
        let call = Call::from_bits(call)?;
        let (ordinal, peer, is_send) = (state >> 2, way as u32, way >> 32 & 1 != 0);
        Some(Self {
            state,
            way,
            operation: NetOperation { ordinal, call, communicator, peer, is_send },
        })
    }
}

/// A network operation begins for the operation `parent`, in the communicator of `context`. Returns
/// the handle that NCCL passes at its end. `None`: one of the two is unknown, or there is no slot.
///
/// Communicator and parent may belong to another process, on whose behalf this one sends.
pub fn begin(context: u64, parent: u64, way: PeerAndDirection) -> Option<u64> {
    let (Context { id, .. }, call) = (Context::from_bits(context)?, handle::call_of(parent)?);
    let ordinal = COUNT.fetch_add(1, Ordering::Relaxed) & OperationId::ORDINAL;
    for attempt in 0..2 * TRIES {
        let number = (ordinal.wrapping_add(attempt % TRIES) % MOST as u64) as usize;
        let place = &TABLE[number];
        let now = place.state();
        // NCCL does not report the end of operations of some other transports.
        let is_old =
            now & 3 == FILLED && ordinal.wrapping_sub(now >> 2) & OperationId::ORDINAL > OLD;
        let is_free = now == 0 || now & 3 == ENDED || is_old && attempt >= TRIES;
        let words = [call.to_bits(), id, way.to_bits(call.function.is_point_to_point())];
        if !is_free || !place.fill(now, ordinal, words) {
            continue;
        }
        return Some(OperationId { place: number, ordinal }.to_bits());
    }
    lost(id).store(ordinal + 1, Ordering::Relaxed);
    None
}

/// Event `handle` ends. This has no effect unless it is a network operation that has not ended.
pub fn end(handle: u64) {
    let Some(OperationId { place, ordinal }) = OperationId::from_bits(handle) else { return };
    if let Some(place) = TABLE.get(place) {
        place.end(ordinal);
    }
}

/// The communicator with number `id` has ended, and all its operations with it.
pub(super) fn end_all(id: u64) {
    let of =
        |place: &&Place| SlotContent::of(place).filter(|read| read.operation.communicator == id);
    TABLE
        .iter()
        .filter_map(|place| Some((place, of(&place)?)))
        .for_each(|(place, read)| place.free(read.state));
    lost(id).store(0, Ordering::Relaxed);
}

/// All operations, in no order. Removes an operation if a later one of the same connection has
/// ended: then it has ended unreported.
pub(super) fn all() -> Vec<NetOperation> {
    let found: Vec<_> =
        TABLE.iter().filter_map(|place| Some((place, SlotContent::of(place)?))).collect();
    let (ended, begun): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|(_, read)| read.state & 3 == ENDED);
    let mut last: HashMap<(u64, u64), u64> = HashMap::new();
    for (_, SlotContent { way, operation, .. }) in ended {
        let last = last.entry((operation.communicator, way)).or_default();
        *last = operation.ordinal.max(*last);
    }
    let is_over = |SlotContent { way, operation, .. }: &SlotContent| {
        last.get(&(operation.communicator, *way)).is_some_and(|last| *last > operation.ordinal)
    };
    let (over, live): (Vec<_>, Vec<_>) = begun.into_iter().partition(|(_, read)| is_over(read));
    over.into_iter().for_each(|(place, read)| place.free(read.state));
    live.into_iter()
        .map(|(_, read)| read.operation)
        .filter(|operation| !operation.is_after_lost())
        .collect()
}

/// The number of latest operations that [`recent`] checks.
const LAST: u64 = 64;

/// The operation that messages starting now belong to, in communicator number `communicator`, in
/// this direction and with `peer`. It is the oldest of the latest few that has not ended. `None`
/// while there are point-to-point operations and others, which use separate connections. Without
/// `peer` it is known if all are with one peer, or of one operation. NCCL's progress thread calls
/// it: it reads at most [`LAST`] and [`TRIES`] slots and allocates nothing.
pub fn recent(communicator: u64, is_send: bool, peer: Option<u32>) -> Option<Call> {
    let id = handle::id_of(communicator);
    let count = COUNT.load(Ordering::Relaxed);
    let mut found: Option<NetOperation> = None;
    // An operation is in one of TRIES slots; its ordinal gives the first.
    let last_place = count.wrapping_add(TRIES - 2);
    for back in 0..LAST + TRIES - 1 {
        let place = &TABLE[(last_place.wrapping_sub(back) % MOST as u64) as usize];
        let Some(SlotContent { state, operation, .. }) = SlotContent::of(place) else { continue };
        if count.wrapping_sub(operation.ordinal) & OperationId::ORDINAL > LAST {
            continue;
        }
        let is_other = operation.communicator != id || operation.is_send != is_send;
        if state & 3 != FILLED || is_other || peer.is_some_and(|peer| peer != operation.peer) {
            continue;
        }
        let is_unclear = |other: NetOperation| {
            other.is_point_to_point() != operation.is_point_to_point()
                || other.peer != operation.peer && other.call != operation.call
        };
        if operation.is_after_lost() || found.is_some_and(is_unclear) {
            return None;
        }
        found = Some(found.filter(|other| other.ordinal < operation.ordinal).unwrap_or(operation));
    }
    found.map(|operation| operation.call)
}

#[cfg(test)]
mod tests {
    use super::super::place::FILLING;
    use super::*;
    use crate::proto::explain::operation::Function;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// The table belongs to the process: one test at a time uses it.
    fn alone() -> MutexGuard<'static, ()> {
        static TABLE_IN_USE: Mutex<()> = Mutex::new(());
        TABLE_IN_USE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn context(id: u64) -> u64 {
        Context { place: 0, id }.to_bits()
    }

    fn parent(number: u64) -> u64 {
        handle::of_call(Call { function: Function::AllGather, number: Some(number) })
    }

    fn way(peer: u32, is_send: bool) -> PeerAndDirection {
        PeerAndDirection { peer, is_send, channel: 0, rank: 0 }
    }

    fn of(communicator: u64) -> Vec<(u64, u32, bool)> {
        let ours = all().into_iter().filter(|one| one.communicator == communicator);
        let mut ours: Vec<_> =
            ours.map(|one| (one.call.number.unwrap_or(0), one.peer, one.is_send)).collect();
        ours.sort_unstable();
        ours
    }

    #[test]
    fn an_operation_is_there_from_its_beginning_to_its_end() {
        let _alone = alone();
        let one = begin(context(0x11), parent(1), way(7, true)).expect("room");
        let two = begin(context(0x11), parent(2), way(u32::MAX, false)).expect("room");
        assert_eq!(of(0x11), [(1, 7, true), (2, u32::MAX, false)]);
        end(one);
        end(one);
        assert_eq!(of(0x11), [(2, u32::MAX, false)]);
        end(two);
        assert_eq!(of(0x11), []);
    }

    #[test]
    fn what_nobody_gave_out_begins_and_ends_nothing() {
        let _alone = alone();
        let (good, kept) =
            (begin(context(0x12), parent(1), way(0, true)).expect("room"), parent(1));
        for wrong in [0, 1, u64::MAX, kept, context(0x12), good ^ 1, good ^ 1 << 48] {
            assert_eq!(
                begin(context(0x12), wrong, way(0, true)).is_some(),
                wrong == kept,
                "{wrong:#x}"
            );
            end(wrong);
        }
        assert_eq!(begin(parent(1), parent(1), way(0, true)), None);
        assert_eq!(of(0x12).len(), 2);
    }

    #[test]
    fn an_operation_is_over_when_a_later_one_of_the_same_connection_has_ended() {
        let _alone = alone();
        let id = 0x17;
        let begin = |number, way| begin(context(id), parent(number), way).expect("room");
        let one = way(7, true);
        let others = [
            way(8, true),
            way(7, false),
            PeerAndDirection { channel: 1, ..one },
            PeerAndDirection { rank: 1, ..one },
            PeerAndDirection { rank: 1 << 21, channel: 255, ..one },
        ];
        for (number, way) in (20..).zip(others) {
            begin(number, way);
        }
        begin(1, one);
        let (second, third) = (begin(2, one), begin(3, one));
        let send = handle::of_call(Call { function: Function::Send, number: None });
        let sent = super::begin(context(id), send, one).expect("room");
        end(sent);
        assert_eq!(of(id).len(), others.len() + 3, "a send has a connection of its own");
        end(second);
        let left: Vec<_> = of(id).into_iter().map(|(number, ..)| number).collect();
        assert_eq!(left, [3, 20, 21, 22, 23, 24]);
        end(third);
        end_all(id + 1);
        assert_eq!(of(id).len(), others.len());
        end_all(id);
        assert_eq!(of(id), []);
    }

    #[test]
    fn of_the_last_operations_the_oldest_one_that_has_not_ended_is_that_of_new_messages() {
        let _alone = alone();
        let begin = |number, way| begin(context(0x18), parent(number), way).expect("room");
        let number =
            |is_send, peer| recent(0xffff << 48 | 0x18, is_send, peer).and_then(|call| call.number);
        let first = begin(1, way(7, true));
        begin(2, way(7, true));
        begin(3, way(7, false));
        assert_eq!(
            [number(true, Some(7)), number(true, None), number(false, Some(7))],
            [Some(1), Some(1), Some(3)]
        );
        assert_eq!(
            [number(true, Some(8)), recent(0x19, true, None).and_then(|call| call.number)],
            [None; 2]
        );
        end(first);
        assert_eq!(number(true, None), Some(2));
        begin(2, way(8, true));
        assert_eq!(number(true, None), Some(2), "one operation with two peers");
        begin(4, way(9, true));
        assert_eq!([number(true, None), number(true, Some(9))], [None, Some(4)]);
        end_all(0x18);
    }

    /// As where NCCL has not reported the end of many others.
    #[test]
    fn the_last_operations_are_found_where_the_next_free_places_are() {
        let _alone = alone();
        TABLE.iter().for_each(|place| place.free(place.state()));
        let begin = |id, is_send| begin(context(id), parent(1), way(7, is_send));
        let others: Vec<_> = (0..MOST).map(|_| begin(0x1b, true).expect("room")).collect();
        let next = COUNT.load(Ordering::Relaxed) as usize % MOST;
        let last = next + 1 + TRIES as usize - 1;
        for free in [next + 3, last].map(|place| place % MOST) {
            let there = |other: &&u64| {
                OperationId::from_bits(**other).is_some_and(|live| live.place == free)
            };
            end(*others.iter().find(there).expect("all places are taken"));
        }
        let is_found = |is_send| recent(0xffff << 48 | 0x1c, is_send, Some(7)).is_some();
        begin(0x1c, true).expect("room three places on");
        assert_eq!([true, false].map(is_found), [true, false]);
        begin(0x1c, false).expect("room in the last place that is tried");
        assert_eq!([true, false].map(is_found), [true, true]);
        assert!((2..LAST).all(|_| begin(0x1b, true).is_none()), "the table is full");
        assert_eq!([true, false].map(is_found), [true, true]);
        assert_eq!(begin(0x1b, true), None);
        assert_eq!([true, false].map(is_found), [false, true], "64 were begun since");
        [0x1b, 0x1c].into_iter().for_each(end_all);
    }

    #[test]
    fn none_is_reported_that_was_begun_after_one_that_there_was_no_room_for() {
        let _alone = alone();
        TABLE.iter().for_each(|place| place.free(place.state()));
        let begin = |id, number| begin(context(id), parent(number), way(7, true));
        let told =
            || (of(0x21), recent(0xffff << 48 | 0x21, true, Some(7)).and_then(|call| call.number));
        let others: Vec<_> = (0..MOST).map(|_| begin(0x22, 1).expect("room")).collect();
        assert_eq!(begin(0x21, 1), None);
        others.into_iter().for_each(end);
        begin(0x21, 2).expect("room");
        assert_eq!(told(), (vec![], None), "the first one may be going on");
        end_all(0x21);
        begin(0x21, 3).expect("room");
        assert_eq!(
            told(),
            (vec![(3, 7, true)], Some(3)),
            "another communicator of the same number"
        );
        [0x21, 0x22].into_iter().for_each(end_all);
    }

    #[test]
    fn while_there_are_sends_and_other_operations_new_messages_are_of_neither() {
        let _alone = alone();
        let number = || recent(0xffff << 48 | 0x23, true, Some(7)).map(|call| call.function);
        let send = handle::of_call(Call { function: Function::Send, number: None });
        let sent = begin(context(0x23), send, way(7, true)).expect("room");
        assert_eq!(number(), Some(Function::Send));
        let gather = begin(context(0x23), parent(1), way(7, true)).expect("room");
        assert_eq!(number(), None);
        end(sent);
        assert_eq!(number(), Some(Function::AllGather));
        end(gather);
        end_all(0x23);
    }

    #[test]
    fn operations_whose_end_nobody_tells_do_not_keep_the_table_full() {
        let _alone = alone();
        let others = || all().into_iter().filter(|one| one.communicator == 0x15).count();
        let mut begun = std::iter::repeat_with(|| begin(context(0x15), parent(1), way(0, false)));
        assert!(begun.by_ref().take(2 * MOST).any(|one| one.is_none()), "the table is full");
        assert!(others() > MOST / 2);
        begun.take(OLD as usize).for_each(drop);
        let handle = begin(context(0x16), parent(2), way(7, true));
        assert_eq!(of(0x16), [(2, 7, true)]);
        handle.into_iter().for_each(end);
        assert_eq!(of(0x16), []);
        end_all(0x15);
    }

    /// A reader that has seen the state of one operation never gets the words of the next one in
    /// its slot.
    #[test]
    fn a_reader_sees_no_operation_that_is_half_written() {
        let _alone = alone();
        let begin =
            |number| begin(context(0x13), parent(number), way(number as u32, true)).expect("room");
        let first = begin(1);
        let place = &TABLE[OperationId::from_bits(first).expect("it was given out").place];
        let state = place.state();
        let read_in = |state| {
            place.read_in(state).and_then(SlotContent::from_words).map(|read| read.operation.peer)
        };
        assert_eq!(read_in(state), Some(1));
        end(first);
        assert_eq!(read_in(state), None, "it has ended meanwhile");
        let next =
            std::iter::repeat_with(|| begin(2)).inspect(|handle| end(*handle)).take(2 * MOST);
        assert!(next.map(|_| place.state()).any(|now| now >> 2 != state >> 2));
        assert_eq!(read_in(state), None, "another one is there");
        assert_eq!(read_in(place.state()), Some(2));
        place.state.store(state >> 2 << 2 | FILLING, Ordering::Release);
        assert!(place.read().is_none(), "one is being written");
        place.state.store(0, Ordering::Release);
    }
}
