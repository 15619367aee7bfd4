//! How many messages the receiving end may expect at once: as many as have receives.

use super::receives::Receives;
use super::recv::RecvFlow;

impl RecvFlow {
    /// The receives that each queue pair has to have posted.
    pub fn receives(&self) -> u32 {
        self.receives.posted()
    }

    /// How many each queue pair would have to have for `count` more messages to be accepted, if that is what they lack.
    pub fn more_receives(&self, count: usize) -> Option<u32> {
        if self.window.has_space(count) { None } else { self.receives.more().map(Receives::posted) }
    }

    /// Each queue pair has as many as [`Self::more_receives`] has said.
    pub fn handle_more_receives(&mut self) {
        if let Some(more) = self.receives.more() {
            self.receives = more;
            self.window.set_limit(more.most_messages());
        }
    }

    /// A buffer of a group has room for a message whose length needs two immediates.
    #[cold]
    #[inline(never)]
    pub(super) fn expect_two_immediates(&mut self) {
        self.receives.expect_two_each();
        self.window.set_limit(self.receives.most_messages());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::cts::SlotIndex;
    use crate::proto::imm::{Imm, LengthCode};
    use crate::proto::recv::Buffer;
    use crate::proto::requests::RequestId;
    use crate::proto::stripe::Striping;
    use crate::proto::{MAX_GROUP, QpIndex, Violation};

    fn new() -> RecvFlow {
        RecvFlow::new(Striping::new(1, 1, false))
    }

    fn buffer(length: u32) -> Buffer<'static> {
        Buffer { addr: 0x1000, length, rkeys: &[1, 0, 0, 0], tag: 0 }
    }

    fn post(flow: &mut RecvFlow, buffers: &[Buffer<'_>]) -> Result<Option<RequestId>, Violation> {
        flow.post(buffers.len(), |i| Ok(buffers[i]))
    }

    fn imm(seq: u32, extent: LengthCode) -> Imm {
        Imm::new(SlotIndex::of(seq), extent)
    }

    /// A flow with as many receives as there can be.
    fn grown() -> RecvFlow {
        let mut flow = new();
        while flow.receives.more().is_some() {
            flow.handle_more_receives();
        }
        flow
    }

    #[test]
    fn messages_that_have_no_receives_wait_for_the_oldest_message() {
        let mut flow = grown();
        let groups = flow.receives.most_messages() as usize / MAX_GROUP;
        let ids: Vec<_> =
            (0..groups).map(|_| post(&mut flow, &[buffer(1); 8]).expect("valid").expect("space")).collect();
        while flow.poll_cts(8).is_some() {}
        assert_eq!(post(&mut flow, &[buffer(1); 2]), Ok(None));
        assert_eq!(flow.more_receives(2), None, "there cannot be more");
        flow.handle_immediate(QpIndex(0), imm(2, LengthCode::Full)).expect("outstanding");
        assert_eq!(post(&mut flow, &[buffer(1); 2]), Ok(None), "message 1 may still consume one");
        flow.handle_immediate(QpIndex(0), imm(1, LengthCode::Full)).expect("outstanding");
        assert!(post(&mut flow, &[buffer(1); 2]).expect("valid").is_some());
        assert_eq!(flow.poll_done(ids[0]), Ok(None));
    }

    #[test]
    fn more_messages_than_receives_are_accepted_once_there_are_more_receives() {
        let mut flow = new();
        for _ in 0..25 {
            assert!(post(&mut flow, &[buffer(1)]).expect("valid").is_some());
        }
        assert_eq!((flow.receives(), post(&mut flow, &[buffer(1)])), (64, Ok(None)));
        assert_eq!(flow.more_receives(1), Some(128));
        flow.handle_more_receives();
        assert!(post(&mut flow, &[buffer(1)]).expect("valid").is_some());
        assert_eq!((flow.receives(), flow.more_receives(1)), (128, None), "there is space");
    }

    #[test]
    fn buffers_for_lengths_of_two_immediates_have_two_receives_each() {
        let mut flow = new();
        let long = buffer(Imm::EXPLICIT_LIMIT + 1);
        assert!(post(&mut flow, &[buffer(Imm::EXPLICIT_LIMIT); 8]).expect("valid").is_some());
        assert!(post(&mut flow, &[long; 8]).expect("valid").is_some());
        assert_eq!((post(&mut flow, &[buffer(1)]), flow.more_receives(1)), (Ok(None), Some(128)), "16 of them have 32");
        flow.handle_more_receives();
        for _ in 16..48 {
            assert!(post(&mut flow, &[long]).expect("valid").is_some());
        }
        assert_eq!((post(&mut flow, &[buffer(1)]), flow.more_receives(1)), (Ok(None), Some(256)));
    }
}
