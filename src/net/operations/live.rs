//! Operations of the network that NCCL has begun and not ended: for each of its operations one for each channel, peer and direction.
//!
//! NCCL's progress threads write here, once for each of them at its beginning and end, and not for each message. No thread waits for
//! another one: a place is taken and given back by one atomic exchange, and a reader that sees a place change drops it.

use super::handle::{self, Context, Live};
use crate::proto::explain::operation::Call;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Operations at a time. More are not known.
const MOST: usize = 4096;
/// Places that are tried.
const TRIES: u64 = 16;
/// If all of these are taken, the place of an operation is given away after which so many others were begun.
const OLD: u64 = 1 << 16;

/// States of a place, in the lower two bits; above them the number of the operation. 0: it is free.
const FILLING: u64 = 1;
const FILLED: u64 = 2;

#[repr(align(64))]
#[derive(Debug)]
struct Place {
    state: AtomicU64,
    /// [`Call::to_bits`].
    call: AtomicU64,
    communicator: AtomicU64,
    /// The peer's rank in the communicator; above it, whether this process sends.
    peer: AtomicU64,
}

static TABLE: [Place; MOST] = [const { Place::new() }; MOST];
/// How many operations have been begun.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operation {
    /// Of two, the one that was begun first has the lesser one.
    pub(super) ordinal: u64,
    pub(super) call: Call,
    /// The lower 48 bits of the communicator's number.
    pub(super) communicator: u64,
    pub(super) peer: u32,
    pub(super) is_send: bool,
}

impl Place {
    const fn new() -> Self {
        let [state, call, communicator, peer] = [const { AtomicU64::new(0) }; 4];
        Self { state, call, communicator, peer }
    }

    /// What is there, unless it changes just now.
    fn read(&self) -> Option<Operation> {
        let state = self.state.load(Ordering::Acquire);
        if state & 3 != FILLED {
            return None;
        }
        let [call, communicator, peer] =
            [&self.call, &self.communicator, &self.peer].map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_same = self.state.load(Ordering::Relaxed) == state;
        let call = Call::from_bits(call).filter(|_| is_same)?;
        Some(Operation { ordinal: state >> 2, call, communicator, peer: peer as u32, is_send: peer >> 32 != 0 })
    }
}

/// An operation of the network is begun, for the one that is called `parent`, in the communicator of `context`, with the process that has
/// rank `peer` there. Returns what NCCL passes at its end. `None`: one of the two is not known, or there is no room.
///
/// Communicator and parent may be of another process, for which this one sends.
pub fn begin(context: u64, parent: u64, peer: u32, is_send: bool) -> Option<u64> {
    let (Context { id, .. }, call) = (Context::from_bits(context)?, handle::call_of(parent)?);
    let ordinal = COUNT.fetch_add(1, Ordering::Relaxed) & Live::ORDINAL;
    for attempt in 0..2 * TRIES {
        let number = (ordinal.wrapping_add(attempt % TRIES) % MOST as u64) as usize;
        let place = &TABLE[number];
        let now = place.state.load(Ordering::Relaxed);
        // NCCL does not tell of the end of what some of its other transports do.
        let is_old = now & 3 == FILLED && ordinal.wrapping_sub(now >> 2) & Live::ORDINAL > OLD;
        let is_free = now == 0 || is_old && attempt >= TRIES;
        let filling = ordinal << 2 | FILLING;
        if !is_free || place.state.compare_exchange(now, filling, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            continue;
        }
        fence(Ordering::Release);
        place.call.store(call.to_bits(), Ordering::Relaxed);
        place.communicator.store(id, Ordering::Relaxed);
        place.peer.store(u64::from(peer) | u64::from(is_send) << 32, Ordering::Relaxed);
        place.state.store(ordinal << 2 | FILLED, Ordering::Release);
        return Some(Live { place: number, ordinal }.to_bits());
    }
    None
}

/// The event `handle` ends. If it is no operation of the network, or one that has ended before, that has no effect.
pub fn end(handle: u64) {
    let Some(Live { place, ordinal }) = Live::from_bits(handle) else { return };
    let Some(place) = TABLE.get(place) else { return };
    let filled = ordinal << 2 | FILLED;
    let _ = place.state.compare_exchange(filled, 0, Ordering::Release, Ordering::Relaxed);
}

/// All, in no order.
pub(super) fn all() -> Vec<Operation> {
    TABLE.iter().filter_map(Place::read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::explain::operation::Function;
    use std::sync::atomic::AtomicBool;

    fn context(id: u64) -> u64 {
        Context { place: 0, id }.to_bits()
    }

    fn parent(number: u64) -> u64 {
        handle::of_call(Call { function: Function::AllGather, number: Some(number) })
    }

    fn of(communicator: u64) -> Vec<(u64, u32, bool)> {
        let ours = all().into_iter().filter(|one| one.communicator == communicator);
        let mut ours: Vec<_> = ours.map(|one| (one.call.number.unwrap_or(0), one.peer, one.is_send)).collect();
        ours.sort_unstable();
        ours
    }

    #[test]
    fn an_operation_is_there_from_its_beginning_to_its_end() {
        let one = begin(context(0x11), parent(1), 7, true).expect("room");
        let two = begin(context(0x11), parent(2), u32::MAX, false).expect("room");
        assert_eq!(of(0x11), [(1, 7, true), (2, u32::MAX, false)]);
        end(one);
        end(one);
        assert_eq!(of(0x11), [(2, u32::MAX, false)]);
        end(two);
        assert_eq!(of(0x11), []);
    }

    #[test]
    fn what_nobody_gave_out_begins_and_ends_nothing() {
        let (good, kept) = (begin(context(0x12), parent(1), 0, true).expect("room"), parent(1));
        for wrong in [0, 1, u64::MAX, kept, context(0x12), good ^ 1, good ^ 1 << 48] {
            assert_eq!(begin(context(0x12), wrong, 0, true).is_some(), wrong == kept, "{wrong:#x}");
            end(wrong);
        }
        assert_eq!(begin(parent(1), parent(1), 0, true), None);
        assert_eq!(of(0x12).len(), 2);
    }

    #[test]
    fn operations_whose_end_nobody_tells_do_not_keep_the_table_full() {
        let others = || all().into_iter().filter(|one| one.communicator == 0x15).count();
        let mut begun = std::iter::repeat_with(|| begin(context(0x15), parent(1), 0, false));
        assert!(begun.by_ref().take(2 * MOST).any(|one| one.is_none()), "the table is full");
        // Other tests of this process take places too.
        assert!(others() > MOST / 2);
        begun.take(OLD as usize).for_each(drop);
        let handle = begin(context(0x16), parent(2), 7, true);
        assert_eq!(of(0x16), [(2, 7, true)]);
        handle.into_iter().for_each(end);
        assert_eq!(of(0x16), []);
    }

    /// Each operation is told with two numbers that belong together.
    #[test]
    fn a_reader_sees_no_operation_that_is_half_written() {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2_u64 {
                let is_over = &is_over;
                scope.spawn(move || {
                    for round in 0_u64.. {
                        let number = round * 2 + thread;
                        let handle = begin(context(0x13), parent(number), number as u32, number & 4 != 0);
                        handle.into_iter().for_each(end);
                        if is_over.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            }
            let seen: usize = (0..300).map(|_| of(0x13)).map(|all| all.iter().map(check).count()).sum();
            is_over.store(true, Ordering::Relaxed);
            assert!(seen > 0, "the test has seen none");
        });

        fn check((number, peer, is_send): &(u64, u32, bool)) {
            assert_eq!((*number as u32, number & 4 != 0), (*peer, *is_send));
        }
    }
}
