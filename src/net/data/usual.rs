//! What `test` does by the short way after it has polled: the completions that nearly all are, and requests that are complete by them.
//! All of it is inlined. What is unusual is left to [`super::completion`], before anything of it has been done.

use super::receiver::RecvPath;
use super::sender::SendPath;
use crate::net::qp::wr_id::WrId;
use crate::proto::QpIndex;
use crate::proto::imm::Imm;
use crate::proto::recv_requests::RecvRequest;
use crate::proto::requests::{Entry, Progress};
use crate::proto::send_requests::SendRequest;
use crate::verbs::status::Status;
use crate::verbs::work::Completion;

/// What is told the number of bytes of each message of a request that is complete.
pub trait Done: Fn(&[u32]) + Copy {}

impl<F: Fn(&[u32]) + Copy> Done for F {}

impl SendPath {
    /// To be called when a poll has found nothing; false: [`Self::handle_empty_poll`] is to be called.
    #[inline(always)]
    pub(super) fn has_nothing_to_do(&mut self) -> bool {
        !self.stall.is_due()
    }

    /// If `request` is complete, calls `done`; it has ended then.
    #[inline(always)]
    pub(super) fn finish_usual(&mut self, request: &Entry<SendRequest>, done: impl Done) -> Progress {
        let progress = self.flow.progress(request);
        if let Progress::Finished(length) = progress {
            self.stats.handle_done(length);
            done(&[length]);
        }
        progress
    }

    /// Handles completions in their order, as long as each is that of a write that carries data and its immediate ([`WrId::Data`]) and has
    /// succeeded; then finishes `request`, if it is complete. Returns the others, from the first on that is not such a one; `None`: there is none.
    #[inline(always)]
    pub(super) fn handle_usual<'c>(
        &mut self,
        mut completions: &'c [Completion],
        request: &Entry<SendRequest>,
        done: impl Done,
    ) -> Option<&'c [Completion]> {
        while let [completion, others @ ..] = completions {
            let WrId::Data { request: of, .. } = WrId::from_bits(completion.id()) else { return Some(completions) };
            if completion.status() != Status::SUCCESS || !self.flow.complete_stripe(of) {
                return Some(completions);
            }
            completions = others;
        }
        self.finish_usual(request, done);
        None
    }
}

impl RecvPath {
    /// As [`SendPath::has_nothing_to_do`].
    #[inline(always)]
    pub(super) fn has_nothing_to_do(&mut self) -> bool {
        !self.stall.is_due() && !self.flow.has_waiting_cts()
    }

    /// If `request` is complete and for one message, calls `done`; it has ended then.
    #[inline(always)]
    pub(super) fn finish_usual(&mut self, request: &Entry<RecvRequest>, done: impl Done) -> Progress {
        let progress = self.flow.progress(request);
        if let Progress::Finished(length) = progress {
            self.stats.handle_done(length);
            done(&[length]);
        }
        progress
    }

    /// Handles completions in their order, as long as each is that of a receive, by which a whole message has come; then finishes `request`, if
    /// it is complete. `None`: that is all. Otherwise returns the completions that are left: from the first on that is another one, or those after
    /// one that leaves receives to be posted; an empty slice, if clear-to-sends are to be sent, or the request is for a group.
    #[inline(always)]
    pub(super) fn handle_usual<'c>(
        &mut self,
        mut completions: &'c [Completion],
        request: &Entry<RecvRequest>,
        done: impl Done,
    ) -> Option<&'c [Completion]> {
        let qps = self.qps.qps.as_mut_slice();
        while let [completion, others @ ..] = completions {
            let WrId::Receive { qp } = WrId::from_bits(completion.id()) else { return Some(completions) };
            // By index: of an optional reference the compiler makes a value, which it does not need.
            if usize::from(qp) >= qps.len() {
                return Some(completions);
            }
            let connected = &mut qps[usize::from(qp)];
            if completion.status() != Status::SUCCESS
                || !self.flow.complete_whole(QpIndex(qp), Imm::from_bits(completion.imm()))
            {
                return Some(completions);
            }
            completions = others;
            if connected.count_receive() {
                return Some(completions);
            }
        }
        if self.flow.is_cts_due() {
            return Some(&[]);
        }
        match self.finish_usual(request, done) {
            Progress::Pending | Progress::Finished(_) => None,
            Progress::Other => Some(&[]),
        }
    }
}
