//! How a communicator stands, for what explains waits.

use super::exclusive_cell::Occupant;
use super::receiver::RecvComm;
use super::sender::SendComm;
use crate::net::control::peer_state::PeerState;
use crate::proto::cts::{Cts, SlotIndex};
use crate::proto::explain::look::{Contact, Found, Look};

impl SendComm {
    /// How it stands now, unless a thread is inside.
    pub fn look(&self) -> Found {
        let look = self.path.try_visit(|path| {
            let ring = &path.ring;
            let read = |seq| ring.read(SlotIndex::of(seq).index(), |last_word| Cts::seq_of(last_word) == seq);
            path.flow.look(path.stall.tests(), read)
        });
        found(look, &self.peer)
    }
}

impl RecvComm {
    /// How it stands now, unless a thread is inside.
    pub fn look(&self) -> Found {
        let look = self.path.try_visit(|path| {
            let flushes = path.flushes.as_ref().is_some_and(|flushes| flushes.are_outstanding());
            path.flow.look(path.stall.tests(), flushes)
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
