//! NCCL's communicators in this process, and the operations that were begun in each.

use super::handle::{self, Context};
use super::live;
use crate::proto::explain::operation::{BegunOperations, Call, Function, cut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most communicators that are known at a time.
const MOST: usize = 256;
/// The context that NCCL passes for an operation that is not counted.
pub const UNCOUNTED: u64 = handle::UNCOUNTED;
/// The slot number of a communicator for which there was no room.
const NOWHERE: usize = 0xfff;

static TABLE: [Entry; MOST] = [const { Entry::new() }; MOST];
/// Which slots are in use. Locked when a communicator begins or ends, and when the table is read.
static PLACES: Mutex<Places> = Mutex::new(Places { known: Vec::new(), ends: 0 });

/// The part that is written without a lock while a communicator is used.
#[derive(Debug)]
struct Entry {
    /// Its number plus 1; 0 if the slot is free.
    id: AtomicU64,
    /// As [`BegunOperations::begun`].
    begun: [AtomicU64; Function::COUNT],
}

#[derive(Debug)]
struct Places {
    /// By slot.
    known: Vec<Known>,
    /// How many communicators have ended.
    ends: u64,
}

#[derive(Debug)]
struct Known {
    id: u64,
    name: String,
    rank: u32,
    /// Its position in the order of ends; `None` if it has not ended. Events may come late, so it
    /// stays until its slot is needed.
    ended: Option<u64>,
}

impl Entry {
    const fn new() -> Self {
        Self { id: AtomicU64::new(0), begun: [const { AtomicU64::new(0) }; Function::COUNT] }
    }
}

/// A communicator as shown in reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Communicator {
    pub(super) name: String,
    pub(super) progress: BegunOperations,
}

/// NCCL begins communicator `id`, in which this process has rank `rank`; its user may have given it
/// `name`. Returns the context that NCCL passes with its events.
pub fn begin(id: u64, name: &str, rank: u32) -> u64 {
    let id = handle::id_of(id);
    let mut places = lock();
    let known = Known { id, name: cut(name).to_owned(), rank, ended: None };
    let Some(place) = places.put(known) else { return Context { place: NOWHERE, id }.to_bits() };
    let entry = &TABLE[place];
    entry.id.store(0, Ordering::Relaxed);
    entry.begun.iter().for_each(|begun| begun.store(0, Ordering::Relaxed));
    entry.id.store(id + 1, Ordering::Release);
    Context { place, id }.to_bits()
}

/// NCCL ends the communicator of `context`. Forgets operations that NCCL has not ended, as after an
/// abort.
pub fn end(context: u64) {
    let Some(Context { place, id }) = Context::from_bits(context) else { return };
    let mut places = lock();
    let ends = places.ends;
    if let Some(known) =
        places.known.get_mut(place).filter(|known| known.id == id && known.ended.is_none())
    {
        known.ended = Some(ends);
        places.ends += 1;
    }
    // Several GPUs of a process may be in one communicator.
    let is_open = places.known.iter().any(|known| known.id == id && known.ended.is_none());
    drop(places);
    if !is_open {
        live::end_all(id);
    }
}

/// NCCL begins an operation in the communicator of `context`, on the thread that calls NCCL.
/// Returns the context that NCCL passes with all of its events.
pub fn begin_call(context: u64, call: Call) -> u64 {
    let found =
        Context::from_bits(context).and_then(|Context { place, id }| Some((TABLE.get(place)?, id)));
    if let (Some((entry, id)), Some(number)) = (found, call.number)
        && entry.id.load(Ordering::Acquire) == id + 1
    {
        entry.begun[call.function as usize].fetch_max(number + 1, Ordering::Relaxed);
    }
    handle::of_call(call)
}

/// All communicators that have begun and not ended.
pub(super) fn all() -> Vec<Communicator> {
    let places = lock();
    let open = places.known.iter().enumerate().filter(|(_, known)| known.ended.is_none());
    let communicator = |(place, known): (usize, &Known)| Communicator {
        name: known.name.clone(),
        progress: BegunOperations {
            communicator: known.id,
            rank: known.rank,
            begun: TABLE[place].begun.each_ref().map(|begun| begun.load(Ordering::Relaxed)),
        },
    };
    open.map(communicator).collect()
}

impl Places {
    /// Finds a slot for `known`: a new one, or that of the communicator that ended first.
    fn put(&mut self, known: Known) -> Option<usize> {
        if self.known.len() < MOST {
            self.known.push(known);
            return Some(self.known.len() - 1);
        }
        let ended =
            self.known.iter().enumerate().filter_map(|(place, known)| Some((known.ended?, place)));
        let (_, place) = ended.min()?;
        self.known[place] = known;
        Some(place)
    }
}

fn lock() -> MutexGuard<'static, Places> {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(id: u64) -> Option<Communicator> {
        all().into_iter().find(|one| one.progress.communicator == id)
    }

    fn all_reduce(number: Option<u64>) -> Call {
        Call { function: Function::AllReduce, number }
    }

    #[test]
    fn what_is_begun_in_a_communicator_is_kept_until_it_ends() {
        let context = begin(0xffff_0000_0000_0007, "tp", 3);
        assert_eq!(
            handle::call_of(begin_call(context, all_reduce(Some(4)))),
            Some(all_reduce(Some(4)))
        );
        begin_call(context, all_reduce(Some(2)));
        begin_call(context, Call { function: Function::Send, number: None });
        let Communicator { name, progress } = of(7).expect("it has begun");
        assert_eq!((name.as_str(), progress.rank), ("tp", 3));
        let begun: Vec<_> =
            progress.begun.into_iter().enumerate().filter(|(_, begun)| *begun > 0).collect();
        assert_eq!(begun, [(Function::AllReduce as usize, 5)]);
        end(context);
        assert_eq!(of(7), None);
        // Late, and twice.
        begin_call(context, all_reduce(Some(9)));
        end(context);
    }

    #[test]
    fn operations_end_with_the_last_gpu_of_the_process_in_the_communicator() {
        let [one, two] = [0, 1].map(|rank| begin(0x79, "", rank));
        let way = live::PeerAndDirection { peer: 2, is_send: true, channel: 0, rank: 0 };
        assert!(live::begin(one, handle::of_call(all_reduce(None)), way).is_some());
        let count =
            || live::all().into_iter().filter(|operation| operation.communicator == 0x79).count();
        end(one);
        assert_eq!(count(), 1);
        end(two);
        assert_eq!(count(), 0);
    }

    #[test]
    fn a_context_that_nobody_gave_out_changes_nothing() {
        let context = begin(0x77, "", 0);
        let other =
            Context { place: Context::from_bits(context).expect("a context").place, id: 0x78 };
        for wrong in
            [0, 1, u64::MAX, other.to_bits(), Context { place: NOWHERE, id: 0x77 }.to_bits()]
        {
            begin_call(wrong, all_reduce(Some(100)));
            end(wrong);
        }
        assert_eq!(of(0x77).map(|one| one.progress.begun), Some([0; Function::COUNT]));
        end(context);
    }

    #[test]
    fn the_place_of_the_communicator_that_has_ended_first_is_given_away_when_there_is_no_other() {
        let known = |id, ended| Known { id, name: String::new(), rank: 0, ended };
        let mut places = Places { known: Vec::new(), ends: 0 };
        assert!((0..MOST).all(|place| places.put(known(1, None)) == Some(place)));
        assert_eq!(places.put(known(2, None)), None);
        (places.known[9].ended, places.known[200].ended) = (Some(1), Some(0));
        assert_eq!([3, 4, 5].map(|id| places.put(known(id, None))), [Some(200), Some(9), None]);
    }
}
