//! How a communicator stands, for what explains waits.

use super::receiver::RecvComm;
use super::sender::SendComm;
use crate::net::control::peer_state::PeerState;
use crate::proto::cts::{Cts, SlotIndex};
use crate::proto::explain::look::{Contact, Look};

impl SendComm {
    /// How it stands now; `None` if NCCL's thread is inside.
    pub fn look(&self) -> Option<Look> {
        let look = self.path.try_visit(|path| {
            let ring = &path.ring;
            let read = |seq| ring.read(SlotIndex::of(seq).index(), |last_word| Cts::seq_of(last_word) == seq);
            path.flow.look(path.stall.tests(), read)
        })?;
        Some(with_peer(look, &self.peer))
    }
}

impl RecvComm {
    /// How it stands now; `None` if NCCL's thread is inside.
    pub fn look(&self) -> Option<Look> {
        let look = self.path.try_visit(|path| {
            let flushes = path.flushes.as_ref().is_some_and(|flushes| flushes.are_outstanding());
            path.flow.look(path.stall.tests(), flushes)
        })?;
        Some(with_peer(look, &self.peer))
    }
}

fn with_peer(look: Look, peer: &PeerState) -> Look {
    let state = peer.state();
    let contact = match (state.is_gone(), state.is_lost()) {
        (true, _) => Contact::Gone,
        (false, true) => Contact::Lost,
        (false, false) => Contact::Up,
    };
    Look { recovers: state.is_recovering(), contact, ..look }
}
