//! How the receiver lists what is missing.

use super::account::{Account, MissingMessage};
use super::rail_mask::RailMask;
use crate::cts::{Cts, SlotIndex};
use crate::recv::RecvFlow;
use crate::stripe::Striping;
use crate::{MAX_RAILS, QpIndex, RING_SLOTS};

impl RecvFlow {
    /// The sequence number of the oldest message that has not arrived.
    pub fn oldest_missing(&self) -> u32 {
        self.window.oldest()
    }

    /// Lists the messages that have not arrived whole. To be called after the queue pairs that were in use are destroyed and
    /// all of their completions have been handled. What has arrived of a listed message is forgotten: the whole of it comes
    /// again, over queue pairs as `striping` says. The account stands for all clear-to-sends up to now: none of them is
    /// returned by [`Self::take_cts`] any more.
    pub fn account(&mut self, striping: Striping) -> Account {
        self.keep_rails();
        let (oldest, next) = (self.window.oldest(), self.window.next());
        let mut missing = Vec::new();
        for seq in (0..next.wrapping_sub(oldest)).map(|i| oldest.wrapping_add(i)) {
            let slot = SlotIndex::of(seq);
            let arrival = &mut self.arrivals[slot.index()];
            if arrival.is_pending() {
                arrival.reset();
                let (cts, extra) = self.shadow.get(slot);
                missing.push(MissingMessage { cts, extra });
            }
        }
        self.window.handle_account(missing.len() as u32);
        self.striping = striping;
        Account { oldest, next, missing }
    }

    /// The memory of buffers has other keys from now on, since a rail uses a port of another card: `keys_at` returns them by address
    /// and length, or `None` where they are as before. To be called before [`Self::account`], which tells the sender.
    pub fn renew_keys(&mut self, mut keys_at: impl FnMut(u64, u32) -> Option<[u32; MAX_RAILS]>) {
        let (oldest, next) = (self.window.oldest(), self.window.next());
        for slot in (0..next.wrapping_sub(oldest)).map(|i| SlotIndex::of(oldest.wrapping_add(i))) {
            let (cts, _) = self.shadow.get(slot);
            if let Some([first, second, extra @ ..]) = keys_at(cts.addr, cts.length) {
                self.shadow.put(slot.index(), &Cts { rkeys: [first, second], ..cts }, || extra);
            }
        }
    }

    /// The rails over which the message in `slot` has come.
    pub(crate) fn rails_of_slot(&self, slot: usize) -> RailMask {
        let arrived = self.arrivals[slot].qps;
        if arrived == 0 {
            return self.earlier_rails.get(slot).copied().unwrap_or(self.all_rails);
        }
        let qps = (0..self.striping.qp_count()).filter(|qp| arrived & 1 << qp != 0);
        qps.fold(RailMask::NONE, |rails, qp| rails | RailMask::only(self.striping.rail_of(QpIndex(qp))))
    }

    /// Notes the rails of the messages that have arrived, before the queue pairs are others.
    fn keep_rails(&mut self) {
        self.earlier_rails = (0..RING_SLOTS).map(|slot| self.rails_of_slot(slot)).collect();
        self.arrivals.iter_mut().filter(|arrival| !arrival.is_pending()).for_each(|arrival| arrival.qps = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Violation;
    use crate::imm::{Imm, LengthCode};
    use crate::recv::Buffer;
    use crate::requests::RequestId;

    const LENGTH: u32 = 20_000;

    fn post(flow: &mut RecvFlow, at: u64, count: usize) -> RequestId {
        let buffer = |i| Buffer { addr: at + i as u64, length: LENGTH, rkeys: &[1, 2, 3, 4], tag: 7 };
        flow.post(count, |i| Ok::<_, Violation>(buffer(i))).expect("valid").expect("space")
    }

    fn announce(flow: &mut RecvFlow) {
        while flow.poll_cts(8).is_some() {}
    }

    fn arrive(flow: &mut RecvFlow, seq: u32, qp: u8, code: LengthCode) {
        flow.handle_immediate(QpIndex(qp), Imm::new(SlotIndex::of(seq), code)).expect("expected");
    }

    fn seqs(account: &Account) -> Vec<u32> {
        account.missing.iter().map(|missing| missing.cts.seq).collect()
    }

    #[test]
    fn what_has_not_arrived_whole_is_listed_and_comes_again_whole() {
        let mut flow = RecvFlow::new(Striping::new(3, 1, false));
        let ids = [post(&mut flow, 100, 3), post(&mut flow, 200, 1)];
        announce(&mut flow);
        let held = post(&mut flow, 300, 1);
        (0..3).for_each(|qp| arrive(&mut flow, 2, qp, if qp == 0 { LengthCode::Full } else { LengthCode::Stripe }));
        arrive(&mut flow, 3, 0, LengthCode::Full);
        arrive(&mut flow, 3, 1, LengthCode::Stripe);
        arrive(&mut flow, 4, 0, LengthCode::Low(5));
        let over = Striping::new(2, 1, false).over(RailMask(0b101));
        let account = flow.account(over);
        assert_eq!((account.oldest, account.next, seqs(&account)), (1, 6, vec![1, 3, 4, 5]));
        assert_eq!(account.arrived(), 1);
        let MissingMessage { cts, extra } = account.missing[1];
        assert_eq!((cts.addr, cts.length, cts.rkeys, cts.tag, extra), (102, LENGTH, [1, 2], 7, [3, 4]));
        assert_eq!(flow.outstanding(), 4);
        assert!(!flow.is_cts_due() && flow.poll_cts(8).is_none(), "the account stands for all clear-to-sends");
        for seq in [1, 3, 4, 5] {
            arrive(&mut flow, seq, 0, LengthCode::Full);
            arrive(&mut flow, seq, 1, LengthCode::Stripe);
        }
        assert_eq!(flow.poll_done(ids[0]), Ok(Some(&[LENGTH; 3][..])));
        assert_eq!(flow.poll_done(ids[1]), Ok(Some(&[LENGTH][..])));
        assert_eq!(flow.poll_done(held), Ok(Some(&[LENGTH][..])));
        assert_eq!(flow.outstanding(), 0);
        post(&mut flow, 400, 1);
        assert_eq!(flow.poll_cts(8), Some(6..7), "the next one is announced as ever");
    }

    #[test]
    fn an_account_has_the_keys_that_memory_has_on_another_card() {
        let mut flow = RecvFlow::new(Striping::new(3, 1, false));
        post(&mut flow, 100, 1);
        announce(&mut flow);
        post(&mut flow, 200, 1);
        post(&mut flow, 300, 1);
        flow.renew_keys(|addr, length| (addr != 200 && length == LENGTH).then_some([addr as u32, 12, 13, 14]));
        let account = flow.account(Striping::new(1, 1, false));
        let keys: Vec<_> = account.missing.iter().map(|MissingMessage { cts, extra }| (cts.rkeys, *extra)).collect();
        assert_eq!(keys, [([100, 12], [13, 14]), ([1, 2], [3, 4]), ([300, 12], [13, 14])]);
        let of_cts: Vec<_> = account.missing.iter().map(|missing| (missing.cts.seq, missing.cts.addr)).collect();
        assert_eq!(of_cts, [(1, 100), (2, 200), (3, 300)]);
    }

    #[test]
    fn nothing_is_listed_if_all_has_arrived() {
        let mut flow = RecvFlow::new(Striping::new(1, 1, false));
        let empty = flow.account(Striping::new(1, 1, false));
        assert_eq!(empty, Account { oldest: 1, next: 1, missing: Vec::new() });
        post(&mut flow, 0, 2);
        announce(&mut flow);
        [1, 2].into_iter().for_each(|seq| arrive(&mut flow, seq, 0, LengthCode::Bytes(1)));
        assert_eq!(flow.account(Striping::new(1, 1, false)), Account { oldest: 3, next: 3, missing: Vec::new() });
    }

    #[test]
    fn as_many_messages_as_can_be_are_listed_across_the_end_of_the_ring() {
        let striping = Striping::new(1, 1, false);
        let mut flow = RecvFlow::new(striping);
        for seq in 1..=5 {
            post(&mut flow, seq, 1);
            announce(&mut flow);
            arrive(&mut flow, seq as u32, 0, LengthCode::Bytes(1));
        }
        while flow.more_receives(RING_SLOTS).is_some() {
            flow.handle_more_receives();
        }
        // 200 that have arrived, so that the others go on over the end of the ring.
        for seq in 6..=205 {
            post(&mut flow, seq, 1);
            announce(&mut flow);
            arrive(&mut flow, seq as u32, 0, LengthCode::Bytes(1));
        }
        let groups = 47;
        for _ in 0..groups {
            post(&mut flow, 0, 8);
        }
        let account = flow.account(striping);
        assert!(account.next > RING_SLOTS as u32);
        assert_eq!((account.oldest, account.next), (206, 206 + 8 * groups));
        assert_eq!(seqs(&account), (206..206 + 8 * groups).collect::<Vec<_>>());
        assert_eq!(account.check(), Ok(()));
    }

    #[test]
    fn the_rails_of_a_buffer_are_known_after_the_queue_pairs_are_others() {
        let mut flow = RecvFlow::new(Striping::new(3, 1, false));
        for at in [100, 200] {
            post(&mut flow, at, 1);
        }
        announce(&mut flow);
        arrive(&mut flow, 1, 2, LengthCode::Bytes(5));
        assert_eq!(flow.rails_of(100), 0b100);
        flow.account(Striping::new(1, 1, false).over(RailMask::only(1)));
        arrive(&mut flow, 2, 0, LengthCode::Bytes(5));
        assert_eq!((flow.rails_of(100), flow.rails_of(200)), (0b100, 0b010));
        flow.account(Striping::new(3, 1, false));
        assert_eq!((flow.rails_of(100), flow.rails_of(200), flow.rails_of(300)), (0b100, 0b010, 0b111));
    }
}
