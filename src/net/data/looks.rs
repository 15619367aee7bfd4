//! How a communicator stands, for what explains waits.

use super::exclusive_cell::Occupant;
use super::receiver::RecvComm;
use super::sender::SendComm;
use crate::net::control::peer_state::PeerState;
use crate::proto::cts::{Cts, SlotIndex};
use crate::proto::explain::look::{Contact, Found, Look};

impl SendComm {
    /// A message is of an operation of NCCL's: tags are ranks.
    pub fn handle_operation(&self) {
        if !self.nic.has_only_ranks_as_tags() {
            // If another thread is inside, the next message tells it.
            let _ = self.path.enter(|path| {
                path.tags_are_ranks = true;
                Ok(())
            });
        }
    }

    /// How it stands now, unless a thread is inside.
    pub fn look(&self) -> Found {
        let look = self.path.try_visit(|path| {
            let ring = &path.ring;
            let read = |seq| ring.read(SlotIndex::of(seq).index(), |last_word| Cts::seq_of(last_word) == seq);
            let look = path.flow.look(path.stall.tests(), read);
            Look { sender_rank: look.sender_rank.filter(|_| path.tags_are_ranks), ..look }
        });
        found(look, &self.peer)
    }
}

impl RecvComm {
    /// As [`SendComm::handle_operation`].
    pub fn handle_operation(&self) {
        if !self.nic.has_only_ranks_as_tags() {
            let _ = self.path.enter(|path| {
                path.tags_are_ranks = true;
                Ok(())
            });
        }
    }

    /// How it stands now, unless a thread is inside.
    pub fn look(&self) -> Found {
        let look = self.path.try_visit(|path| {
            let flushes = path.flushes.as_ref().is_some_and(|flushes| flushes.are_outstanding());
            let look = path.flow.look(path.stall.tests(), flushes);
            Look { sender_rank: look.sender_rank.filter(|_| path.tags_are_ranks), ..look }
        });
        found(look, &self.peer)
    }
}

/// What has been found, with what is known of `peer`.
fn found(look: Result<Look, Occupant>, peer: &PeerState) -> Found {
    let look = match look {
        Ok(look) => look,
        Err(Occupant::Nccl) => return Found::InCall,
        Err(Occupant::Visitor) => return Found::Visited,
    };
    let state = peer.state();
    let contact = match (state.is_gone(), state.is_lost()) {
        (true, _) => Contact::Gone,
        (false, true) => Contact::Lost,
        (false, false) => Contact::Up,
    };
    Found::Look(Look { recovers: state.is_recovering(), contact, ..look })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::control::driver::ControlDriver;
    use crate::net::control::peer_observer::PeerObserver;
    use crate::net::control::stream::ControlStream;
    use crate::net::data::sender::CtsRing;
    use crate::proto::control::event::PeerChange;
    use crate::proto::explain::numbers::Numbers;
    use crate::proto::rail_weights::RailWeights;
    use crate::proto::send::SendFlow;
    use crate::proto::stripe::Striping;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::time::Duration;

    /// One that is never reached.
    fn unreached_peer() -> Arc<PeerState> {
        let driver = ControlDriver::new(Duration::from_secs(20), None).expect("descriptors");
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let stream = ControlStream::open(&driver, nowhere, [1; 16], [2; 16]).expect("this is no child");
        PeerState::new("the peer".into(), stream, true)
    }

    #[test]
    fn a_look_tells_whether_the_connection_recovers_and_what_is_known_of_the_peer() {
        let peer = unreached_peer();
        let numbers = Numbers::Sender { seen: 1, sent: 1, acknowledged: 0, wants: false };
        let at = |recovers, contact| Look {
            numbers,
            refusals: 2,
            calls: 3,
            has_requests: true,
            recovers,
            contact,
            sender_rank: None,
        };
        let look = |recovers, contact| Found::Look(at(recovers, contact));
        let now = || found(Ok(at(false, Contact::Gone)), &peer);
        assert_eq!(now(), look(false, Contact::Up));
        peer.set_recovering(true);
        assert_eq!(now(), look(true, Contact::Up));
        drop(peer.handle_change(PeerChange::Lost("a test".into())));
        assert_eq!(now(), look(true, Contact::Lost));
        drop(peer.handle_change(PeerChange::Closed("bye".into())));
        assert_eq!(now(), look(true, Contact::Gone));
        peer.set_recovering(false);
        assert_eq!(now(), look(false, Contact::Gone));
    }

    /// Whatever the first number of a connection is, and however long the connection lasts.
    #[test]
    fn a_ring_that_nobody_has_written_to_has_no_clear_to_send_and_tells_no_rank() {
        for layout in [[1, 1], [2, 2], [2, 1]] {
            let mut ring = CtsRing::new(layout[0], Cts::empty_last_word).expect("memory");
            ring.lay_out(layout[1], Cts::empty_last_word);
            let read = |seq: u32| ring.read(SlotIndex::of(seq).index(), |last_word| Cts::seq_of(last_word) == seq);
            let first = [0, u32::MAX - 600, 1 << 31]
                .into_iter()
                .flat_map(|from: u32| (0..1200).map(move |i| from.wrapping_add(i)));
            assert_eq!(first.filter(|seq| read(*seq).is_some()).count(), 0, "{layout:?}");
            let flow = SendFlow::new(Striping::new(1, 1, false), RailWeights::from_speeds([1]));
            assert_eq!(flow.look(0, read).sender_rank, None);
        }
    }

    #[test]
    fn where_a_thread_is_inside_it_is_told_which() {
        let peer = unreached_peer();
        assert_eq!(found(Err(Occupant::Nccl), &peer), Found::InCall);
        assert_eq!(found(Err(Occupant::Visitor), &peer), Found::Visited);
    }
}
