//! What the two ends of a connection do while a message is timed: they look after each poll whether it is complete.

use super::receiver::RecvPath;
use super::sender::SendPath;
use crate::error::Result;
use crate::net::control::peer_state::PeerState;
use crate::net::operations::live;
use crate::proto::requests::RequestId;
use crate::stats::Completed;
use crate::stats::labels::Labels;
use crate::stats::record::ConnStats;
use std::sync::Arc;

/// If request `id` is timed from now on, it is one of the operation that NCCL's profiler says messages are of now.
fn name_operation(stats: &mut ConnStats, id: RequestId) {
    if stats.timed_request() == Some(id.to_bits()) {
        let labels = Labels::of(stats);
        let call = labels.communicator().and_then(|id| live::recent(id, labels.is_sender(), labels.peer_rank()));
        stats.set_timed_operation(call.map_or(0, |call| call.to_bits()));
    }
}

impl SendPath {
    /// A message has been accepted that is timed, or the one before it.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_due(&mut self, id: RequestId, tag: u32) {
        // As after tests in vain, of which there are few where a device sends within the call.
        self.look_at_lanes();
        self.stats.handle_due_send(id.to_bits(), Some(tag).filter(|_| self.tags_are_ranks));
        if self.stats.timed_request() == Some(id.to_bits())
            && let Some(place) = self.flow.place(id)
        {
            self.stats.set_timed_place(place);
            // All requests are looked through, so only where that is of use.
            let has_lanes = self.flow.has_lanes();
            if let Some(trials) = self.lane_trials.as_mut().filter(|trials| trials.are_measuring(has_lanes))
                && let Some((_, under_way)) = self.flow.unacknowledged()
            {
                trials.handle_begun(under_way);
            }
        }
        name_operation(&mut self.stats, id);
        self.choose_path();
    }

    /// To be called when the rails have changed, or what is timed.
    pub(super) fn choose_path(&mut self) {
        let is_one = !self.qps.are_on_several_rails() && !self.flow.has_lanes();
        self.is_plain = is_one && self.stats.timed_request().is_none();
    }

    /// As [`Self::progress`], and looks whether the message is complete that is timed.
    ///
    /// # Errors
    /// The connection has failed.
    #[inline(never)]
    pub(super) fn progress_in_general(&mut self) -> Result<()> {
        let outcome = self.progress();
        if let Some(id) = self.stats.timed_request() {
            match self.flow.is_done(RequestId::from_bits(id)) {
                Ok(false) => return outcome,
                Ok(true) => {
                    let bytes = self.flow.bytes(RequestId::from_bits(id));
                    self.stats.handle_timed_done(Completed { messages: 1, bytes });
                    let (_, sent) = self.stats.done();
                    self.lane_trials.iter_mut().for_each(|trials| trials.handle_carried(sent));
                }
                Err(_) => self.stats.forget_timed(),
            }
        }
        self.choose_path();
        outcome
    }
}

impl RecvPath {
    /// A receive has been accepted that is timed, or the one after it. Goes on with it as with others.
    ///
    /// # Errors
    /// The connection has failed.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_due(&mut self, peer: &Arc<PeerState>, id: RequestId, tag: u32) -> Result<()> {
        let (count, _) = self.flow.messages(id);
        let tag = Some(tag).filter(|_| self.tags_are_ranks);
        if let Some(rank) = self.stats.handle_due_receive(id.to_bits(), count, tag) {
            peer.peer().set_rank(rank);
        }
        name_operation(&mut self.stats, id);
        let outcome = self.send_cts().or_else(|e| self.handle_failure(peer, e));
        self.handle_posted_cts();
        self.choose_path();
        outcome
    }

    /// The clear-to-sends that were due have been posted, as far as the send queues had room.
    fn handle_posted_cts(&mut self) {
        if !self.flow.is_cts_due() {
            self.stats.handle_announced();
        }
    }

    /// As [`SendPath::choose_path`].
    pub(super) fn choose_path(&mut self) {
        self.is_plain = !self.qps.are_on_several_rails() && self.stats.timed_request().is_none();
    }

    /// As [`SendPath::progress_in_general`].
    ///
    /// # Errors
    /// The connection has failed.
    #[inline(never)]
    pub(super) fn progress_in_general(&mut self, peer: &Arc<PeerState>, awaited: RequestId) -> Result<()> {
        let outcome = self.progress(peer, awaited);
        if let Some(id) = self.stats.timed_request() {
            self.handle_posted_cts();
            match self.flow.is_done(RequestId::from_bits(id)) {
                Ok(false) => return outcome,
                Ok(true) => {
                    let (messages, bytes) = self.flow.messages(RequestId::from_bits(id));
                    self.stats.handle_timed_done(Completed { messages, bytes });
                }
                Err(_) => self.stats.forget_timed(),
            }
        }
        self.choose_path();
        outcome
    }
}
