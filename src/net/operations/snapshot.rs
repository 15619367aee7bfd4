//! The operations at one moment, and the operation of a connection.

use super::communicators::{self, Communicator};
use super::handle;
use super::live::{self, NetOperation};
use crate::proto::explain::operation::{BegunOperations, Operation, PeerRank};
use crate::stats::labels::Labels;
use std::collections::BTreeMap;

/// Communicators and operations at one moment, indexed so that a lookup for a connection scans
/// nothing.
#[derive(Debug)]
pub struct OperationsSnapshot {
    progress: Vec<BegunOperations>,
    /// The names of the communicators, by number.
    names: BTreeMap<u64, String>,
    /// By direction (true: this process sends) and communicator.
    live: BTreeMap<(bool, u64), InFlight>,
}

/// The operations of one direction and communicator.
#[derive(Debug)]
struct InFlight {
    /// The operation that was begun first.
    first: NetOperation,
    /// The first operation for each peer. `None`: there are point-to-point operations and others,
    /// which use separate connections, and the connection's kind is unknown.
    by_peer: BTreeMap<u32, Option<NetOperation>>,
    /// Whether all are part of one operation of NCCL.
    is_one: bool,
}

impl InFlight {
    fn new(first: NetOperation) -> Self {
        Self { first, by_peer: BTreeMap::new(), is_one: true }
    }

    /// Adds `one`, which was begun after those that are there.
    fn add(&mut self, one: NetOperation) {
        self.is_one &= one.call == self.first.call;
        let to_peer = self.by_peer.entry(one.peer).or_insert(Some(one));
        *to_peer = to_peer.filter(|first| first.is_point_to_point() == one.is_point_to_point());
    }

    /// The first operation, if all belong to one operation of NCCL.
    fn only(&self) -> Option<&NetOperation> {
        self.is_one.then_some(&self.first)
    }
}

impl OperationsSnapshot {
    /// The present operations.
    pub fn now() -> Self {
        let communicators = communicators::all();
        // Without communicators NCCL reports no operations, so no table need be read.
        let live = if communicators.is_empty() { Vec::new() } else { live::all() };
        Self::new(communicators, live)
    }

    fn new(communicators: Vec<Communicator>, mut all: Vec<NetOperation>) -> Self {
        all.sort_unstable_by_key(|one| one.ordinal);
        let mut this = Self { progress: Vec::new(), names: BTreeMap::new(), live: BTreeMap::new() };
        for Communicator { name, progress } in communicators {
            // Several GPUs of a process may be in one communicator.
            this.names.entry(progress.communicator).or_insert(name);
            this.progress.push(progress);
        }
        for one in all {
            // An operation reported late, for a communicator that has ended, would never end.
            if this.names.contains_key(&one.communicator) {
                this.live
                    .entry((one.is_send, one.communicator))
                    .or_insert_with(|| InFlight::new(one))
                    .add(one);
            }
        }
        this
    }

    /// The operation of the oldest outstanding messages of the end with these labels. `None` if
    /// NCCL's reports do not determine it.
    pub fn operation_of(&self, labels: &Labels) -> Option<Operation> {
        self.operation(labels.communicator(), labels.is_sender(), labels.peer_rank())
    }

    /// [`Self::operation_of`] for a connection. `communicator` is the number of the NCCL
    /// communicator that made the connection, if known. `peer` is the peer's rank according to
    /// messages.
    ///
    /// Point-to-point operations and others use separate connections: while there are both with the
    /// peer, the result is `None`.
    ///
    /// NCCL has one network operation for each peer with outstanding messages, and ends it when its
    /// last message is complete. So the result is the one that began first with this communicator,
    /// direction and peer. If messages carry no rank, it is the same if all operations are with one
    /// peer. If all are part of one operation, it is that one.
    ///
    /// Ranks in messages and operations count within the communicator that made the connection, so
    /// they are not compared with those of another. A split communicator may use the connections of
    /// its parent (`splitShare`), and before NCCL 2.28 connections name no communicator. If it is
    /// unknown, the result is the one operation that all in this direction are part of.
    pub fn operation(
        &self,
        communicator: Option<u64>,
        is_send: bool,
        peer: Option<u32>,
    ) -> Option<Operation> {
        let Some(id) = communicator.map(handle::id_of).filter(|id| self.names.contains_key(id))
        else {
            let mut here = self.live.range((is_send, 0)..=(is_send, u64::MAX)).map(|(_, all)| all);
            let all = here.next().filter(|_| here.next().is_none())?;
            return self.of(all.only()?, PeerRank::Unknown);
        };
        let ours = self.live.get(&(is_send, id))?;
        let is_one_peer = ours.by_peer.len() == 1;
        if let Some(peer) = peer.or_else(|| is_one_peer.then_some(ours.first.peer)) {
            return self.of(ours.by_peer.get(&peer)?.as_ref()?, PeerRank::Known(peer));
        }
        // Data goes to the process that has the rank. It may come from one that sends on its
        // behalf.
        self.of(ours.only()?, if is_send { PeerRank::Own } else { PeerRank::Unknown })
    }

    fn of(&self, found: &NetOperation, peer: PeerRank) -> Option<Operation> {
        let name = self.names.get(&found.communicator)?.clone();
        Some(Operation { call: found.call, communicator: found.communicator, name, peer })
    }

    /// What this process has begun in each communicator.
    pub fn progress(&self) -> Vec<BegunOperations> {
        self.progress.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::explain::operation::{Call, Function};

    /// Operations with number, communicator, peer and direction, in the order of their beginnings.
    /// Communicators 1 and 2 are open.
    fn seen(live: &[(u64, u64, u32, bool)]) -> OperationsSnapshot {
        let operation =
            |(ordinal, &(number, communicator, peer, is_send)): (usize, &(u64, u64, u32, bool))| {
                let call = Call { function: Function::AllReduce, number: Some(number) };
                NetOperation { ordinal: ordinal as u64, call, communicator, peer, is_send }
            };
        let progress =
            |communicator| BegunOperations { communicator, rank: 0, begun: [0; Function::COUNT] };
        let communicators =
            [1, 2].map(|id| Communicator { name: "dp".into(), progress: progress(id) });
        // In any order.
        OperationsSnapshot::new(
            communicators.into(),
            live.iter().enumerate().rev().map(operation).collect(),
        )
    }

    fn found(
        seen: &OperationsSnapshot,
        communicator: Option<u64>,
        is_send: bool,
        peer: Option<u32>,
    ) -> Option<(u64, PeerRank)> {
        let found = seen.operation(communicator, is_send, peer)?;
        Some((found.call.number?, found.peer))
    }

    #[test]
    fn it_is_the_oldest_one_of_the_communicator_direction_and_peer() {
        let seen = seen(&[
            (1, 2, 7, true),
            (2, 1, 5, true),
            (3, 1, 7, false),
            (4, 1, 7, true),
            (5, 1, 7, true),
        ]);
        let known = |number| Some((number, PeerRank::Known(7)));
        assert_eq!(found(&seen, Some(1), true, Some(7)), known(4));
        assert_eq!(found(&seen, Some(1), false, Some(7)), known(3));
        assert_eq!(found(&seen, Some(2), true, Some(7)), known(1));
        let operation =
            seen.operation(Some(0xffff << 48 | 1), true, Some(7)).expect("there is one");
        assert_eq!(operation.to_string(), "AllReduce number 4 of communicator dp");
    }

    #[test]
    fn of_a_peer_with_a_send_and_a_collective_operation_in_flight_none_is_reported() {
        let operation = |ordinal, function, peer| {
            let call = Call { function, number: None };
            NetOperation { ordinal, call, communicator: 1, peer, is_send: false }
        };
        let progress = BegunOperations { communicator: 1, rank: 0, begun: [0; Function::COUNT] };
        let communicators = vec![Communicator { name: "dp".into(), progress }];
        let all = vec![
            operation(1, Function::Recv, 7),
            operation(2, Function::AllReduce, 7),
            operation(3, Function::Recv, 8),
            operation(4, Function::Send, 8),
        ];
        let seen = OperationsSnapshot::new(communicators, all);
        assert_eq!(seen.operation(Some(1), false, Some(7)), None);
        let other =
            seen.operation(Some(1), false, Some(8)).map(|operation| operation.call.function);
        assert_eq!(other, Some(Function::Recv));
    }

    #[test]
    fn with_another_peer_there_is_none() {
        let seen = seen(&[(2, 1, 5, true), (2, 1, 5, false)]);
        assert_eq!(found(&seen, Some(1), true, Some(9)), None);
        assert_eq!(
            found(&seen, Some(2), true, Some(5)),
            None,
            "the communicator is known, and has none"
        );
    }

    #[test]
    fn where_messages_tell_no_rank_it_is_known_if_all_have_one_peer_or_are_of_one_operation() {
        let one_peer = seen(&[(1, 2, 7, true), (2, 1, 5, true), (3, 1, 5, true), (4, 1, 6, false)]);
        assert_eq!(found(&one_peer, Some(1), true, None), Some((2, PeerRank::Known(5))));
        let one_operation =
            seen(&[(2, 1, 5, true), (2, 1, 6, true), (2, 1, 5, false), (2, 1, 6, false)]);
        assert_eq!(found(&one_operation, Some(1), true, None), Some((2, PeerRank::Own)));
        assert_eq!(found(&one_operation, Some(1), false, None), Some((2, PeerRank::Unknown)));
        assert_eq!(found(&seen(&[(2, 1, 5, true), (3, 1, 6, true)]), Some(1), true, None), None);
    }

    #[test]
    fn where_the_communicator_is_not_known_it_is_the_one_that_all_are_of() {
        let two = seen(&[(1, 2, 7, true), (1, 2, 5, true), (9, 2, 5, false)]);
        for unknown in [None, Some(3)] {
            assert_eq!(found(&two, unknown, true, Some(7)), Some((1, PeerRank::Unknown)));
            assert_eq!(found(&two, unknown, false, None), Some((9, PeerRank::Unknown)));
        }
        for several in [[(1, 2, 7, true), (2, 2, 7, true)], [(1, 1, 7, true), (1, 2, 7, true)]] {
            assert_eq!(found(&seen(&several), None, true, Some(7)), None);
        }
        assert_eq!(found(&seen(&[]), Some(1), true, Some(1)), None);
    }

    #[test]
    fn an_operation_of_a_communicator_that_is_not_open_is_none() {
        let seen = seen(&[(1, 3, 7, true), (2, 2, 7, true)]);
        assert_eq!(found(&seen, Some(3), true, Some(7)), Some((2, PeerRank::Unknown)));
        assert_eq!(found(&seen, Some(2), true, Some(7)), Some((2, PeerRank::Known(7))));
    }
}
