//! What the two ends of a connection have in common: how NCCL tests their requests, which operation
//! a timed message is of, and how they stand.
//!
//! The first look of `test` and `isend` decides most calls: NCCL makes many that find nothing, and several that find what another
//! call has found already. It calls no function and needs few registers, so that such a call costs little.

use super::exclusive_cell::{ExclusiveCell, Inside, Occupant};
use crate::error::{Error, Result};
use crate::net::control::peer_state::PeerState;
use crate::net::operations::live;
use crate::proto::explain::look::{Contact, Found, Look};
use crate::proto::requests::{Entry, Progress, RequestId};
use crate::stats::labels::Labels;
use crate::stats::record::ConnStats;

pub use crate::verbs::work::{Batch, Completion};

/// What is told the number of bytes of each message of a request that is complete.
pub trait Done: Fn(&[u32]) + Copy {}

impl<F: Fn(&[u32]) + Copy> Done for F {}

/// What the first look has found.
#[derive(Debug)]
pub enum FirstLook<'a, T> {
    /// The call is over.
    Over,
    /// The call goes on by the short way.
    Inside(Inside<'a, T>),
    /// Nothing: the call has to take the long way.
    Closed,
}

impl<'a, T> FirstLook<'a, T> {
    /// What `find` says of a request, if this thread may enter by the short way.
    #[inline(always)]
    pub(super) fn of(cell: &'a ExclusiveCell<T>, find: impl FnOnce(&mut T) -> RequestState) -> Self {
        let Some(mut inside) = cell.begin_if_clear() else { return Self::Closed };
        match find(inside.state()) {
            RequestState::Incomplete => Self::Inside(inside),
            RequestState::Complete => {
                inside.leave();
                Self::Over
            }
            RequestState::Other => {
                inside.leave();
                Self::Closed
            }
        }
    }
}

/// What [`Tested::first_look`] has found of a request.
pub(super) enum RequestState {
    Complete,
    /// It is not complete, and there is one completion queue to be polled for it.
    Incomplete,
    /// There is no such request, or it is one for the long way.
    Other,
}

impl RequestState {
    /// Of a connection that `is_plain`: it has one completion queue, and nothing is being timed.
    #[inline(always)]
    pub(super) fn of(progress: Progress, is_plain: bool) -> Self {
        match progress {
            Progress::Pending if is_plain => Self::Incomplete,
            Progress::Finished(_) => Self::Complete,
            Progress::Pending | Progress::Other => Self::Other,
        }
    }
}

/// An end of a connection, whose requests NCCL tests.
pub trait Tested {
    /// The state of its data path.
    type Path;
    /// A request.
    type Request;

    /// The first look of `test`. The call is over if the request is complete; `done` has been called with the number of bytes of each
    /// message then.
    fn first_look(&self, request: &Entry<Self::Request>, done: impl Done) -> FirstLook<'_, Self::Path>;

    /// `test` of a request that is not complete goes on: polls the only completion queue.
    ///
    /// # Errors
    /// The queue has failed.
    fn poll<'b>(path: &Self::Path, batch: &'b mut Batch) -> Result<&'b [Completion]>;

    /// To be called when [`Self::poll`] has found nothing; false: [`Self::handle_empty_poll`] is to be called.
    fn has_nothing_to_do(path: &mut Self::Path) -> bool;

    /// A poll has found nothing while `request` is tested.
    ///
    /// # Errors
    /// The connection has failed. The error is the same each time.
    fn handle_empty_poll(&self, inside: Inside<'_, Self::Path>, request: &Entry<Self::Request>) -> Result<()>;

    /// Handles the completions that [`Self::poll`] has found, as long as they are usual ones, and looks whether the request is complete. `None`:
    /// that is all. Otherwise [`Self::handle_others`] is to be called with the completions that it returns: those that are left, or an empty slice.
    fn handle_usual<'c>(
        path: &mut Self::Path,
        completions: &'c [Completion],
        request: &Entry<Self::Request>,
        done: impl Done,
    ) -> Option<&'c [Completion]>;

    /// As [`Self::handle_usual`], whatever there is to do.
    ///
    /// # Errors
    /// The connection has failed. The error is the same each time.
    fn handle_others(
        &self,
        inside: Inside<'_, Self::Path>,
        completions: &[Completion],
        request: &Entry<Self::Request>,
        done: impl Done,
    ) -> Result<()>;

    /// [`Self::poll`] has failed with `error`.
    ///
    /// # Errors
    /// The connection has failed. The error is the same each time.
    fn handle_failed_poll(&self, inside: Inside<'_, Self::Path>, error: Error) -> Result<()>;

    /// The state of its data path.
    fn path(&self) -> &ExclusiveCell<Self::Path>;

    /// The whole `test`, by the long way.
    ///
    /// # Errors
    /// As [`Self::handle_others`]; or the request has ended.
    fn test(&self, request: &Entry<Self::Request>, done: impl Done) -> Result<()>;
}

/// If request `id` is timed from now on, it is one of the operation that NCCL's profiler says messages are of now.
pub(super) fn name_operation(stats: &mut ConnStats, id: RequestId) {
    if stats.timed_request() == Some(id.to_bits()) {
        let labels = Labels::of(stats);
        let call = labels.communicator().and_then(|id| live::recent(id, labels.is_sender(), labels.peer_rank()));
        stats.set_timed_operation(call.map_or(0, |call| call.to_bits()));
    }
}

/// What has been found, with what is known of `peer`.
pub(super) fn found(look: std::result::Result<Look, Occupant>, peer: &PeerState) -> Found {
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
    use crate::net::data::send::CtsRing;
    use crate::proto::control::event::PeerChange;
    use crate::proto::cts::{Cts, SlotIndex};
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
