//! The operations at one moment, and that of a connection.

use super::communicators::{self, Communicator};
use super::handle;
use super::live;
use crate::proto::explain::operation::{Operation, Progress};

/// Communicators and operations at one moment.
#[derive(Debug)]
pub struct Seen {
    communicators: Vec<Communicator>,
    /// The one that was begun first comes first.
    live: Vec<live::Operation>,
}

impl Seen {
    /// As they are now.
    pub fn now() -> Self {
        let communicators = communicators::all();
        // Without communicators NCCL tells of no operation: no table needs to be read.
        let mut live = if communicators.is_empty() { Vec::new() } else { live::all() };
        live.sort_unstable_by_key(|one| one.ordinal);
        Self { communicators, live }
    }

    /// The operation that the oldest messages are of which a connection has outstanding, of communicator number `communicator`, if that is
    /// known, to or from the peer that has rank `peer`, if that is known.
    ///
    /// NCCL ends an operation of the network when its last message is complete. So it is the one that was begun first of those with this
    /// communicator, direction and peer.
    ///
    /// Ranks of messages are those of the communicator that this one has been split from, so there may be none with this peer: then
    /// it is the one that was begun first in the communicator. A communicator that shares its connections with the one that
    /// it has been split from has another number: then it is what all of this direction are of, if that is one.
    pub fn operation(&self, communicator: Option<u64>, is_send: bool, peer: Option<u32>) -> Option<Operation> {
        let id = communicator.map(handle::id_of);
        let here = || self.live.iter().filter(|one| one.is_send == is_send);
        let ours = || here().filter(|one| Some(one.communicator) == id);
        let found = ours().find(|one| Some(one.peer) == peer).or_else(|| ours().next()).or_else(|| only(here()))?;
        let known = self.communicators.iter().find(|known| known.progress.communicator == found.communicator);
        Some(Operation {
            call: found.call,
            communicator: found.communicator,
            name: known.map(|known| known.name.clone()).unwrap_or_default(),
            peer: found.peer,
        })
    }

    /// What this process has begun in each communicator.
    pub fn progress(&self) -> Vec<Progress> {
        self.communicators.iter().map(|known| known.progress.clone()).collect()
    }
}

/// The first one, if all are of one operation.
fn only<'a>(mut all: impl Iterator<Item = &'a live::Operation>) -> Option<&'a live::Operation> {
    let first = all.next()?;
    all.all(|one| (one.call, one.communicator) == (first.call, first.communicator)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::explain::operation::{Call, Function};

    fn seen(live: &[(u64, u64, u32, bool)]) -> Seen {
        let operation = |(ordinal, &(number, communicator, peer, is_send)): (usize, &(u64, u64, u32, bool))| {
            let call = Call { function: Function::AllReduce, number: Some(number) };
            live::Operation { ordinal: ordinal as u64, call, communicator, peer, is_send }
        };
        let progress = Progress { communicator: 1, rank: 0, begun: [0; Function::COUNT] };
        let communicators = vec![Communicator { name: "dp".into(), progress }];
        Seen { communicators, live: live.iter().enumerate().map(operation).collect() }
    }

    fn number(seen: &Seen, communicator: Option<u64>, is_send: bool, peer: Option<u32>) -> Option<u64> {
        seen.operation(communicator, is_send, peer).and_then(|found| found.call.number)
    }

    #[test]
    fn it_is_the_oldest_one_of_the_communicator_direction_and_peer() {
        let seen = seen(&[(1, 2, 7, true), (2, 1, 5, true), (3, 1, 7, false), (4, 1, 7, true), (5, 1, 7, true)]);
        assert_eq!(number(&seen, Some(1), true, Some(7)), Some(4));
        assert_eq!(number(&seen, Some(1), false, Some(7)), Some(3));
        assert_eq!(number(&seen, Some(2), true, Some(7)), Some(1));
        let found = seen.operation(Some(0xffff << 48 | 1), true, Some(7)).expect("there is one");
        assert_eq!((found.to_string(), found.peer), ("AllReduce number 4 of communicator dp".into(), 7));
        assert_eq!(seen.operation(Some(2), true, None).expect("one").name, "", "it has ended here");
    }

    #[test]
    fn where_no_peer_fits_it_is_the_oldest_one_of_the_communicator() {
        let seen = seen(&[(1, 2, 7, true), (2, 1, 5, true), (3, 1, 6, true)]);
        assert_eq!(number(&seen, Some(1), true, Some(9)), Some(2));
        assert_eq!(number(&seen, Some(1), true, None), Some(2));
        assert_eq!(number(&seen, Some(1), false, Some(5)), None);
    }

    #[test]
    fn where_no_communicator_fits_it_is_known_if_all_are_of_one() {
        let two = seen(&[(1, 2, 7, true), (1, 2, 5, true), (9, 2, 5, false)]);
        assert_eq!(number(&two, Some(1), true, Some(7)), Some(1));
        assert_eq!(number(&two, None, false, None), Some(9));
        let several = seen(&[(1, 2, 7, true), (2, 2, 5, true)]);
        assert_eq!(number(&several, None, true, Some(7)), None);
        assert_eq!(seen(&[]).operation(Some(1), true, Some(1)), None);
    }
}
