//! One side of an exchange: requests of every kind that the verbs offer, over and over, until one
//! fails.

use super::crash::{Crash, Random, Step};
use crate::common::channel::Channel;
use crate::common::prelude::*;

/// 4.096 us x 2^10 x 4 = 17 ms.
pub(crate) const TERMS: Terms =
    Terms { timeout: 10, retry_cnt: 3, rnr_retry: 7, min_rnr_timer: 1, access: 15 };
/// After so much modelled time without an answer a request fails.
pub(crate) const MODELLED: Duration = Duration::from_micros((4096 << 10) * 4 / 1000);
/// What no wait of a survivor takes, however slow the machine: beyond it something hangs.
const TIME_LIMIT: Duration = Duration::from_secs(60);

pub(crate) const BYTES: usize = 1 << 19;
/// Receives that are kept posted.
const RECEIVES: u64 = 16;
const RECEIVE: u64 = 1000;
/// Offset of the word for atomics. Below lies what sends and writes use.
const WORD: usize = BYTES - 64;

pub(crate) struct Participant {
    pub(crate) node: Node,
    channel: Channel,
    /// Waits on the channel's descriptor, not by polling.
    pub(crate) waits: bool,
    receives: u64,
}

/// How an exchange ended for one side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ending {
    /// Of the request that failed; [`OK`] if none did.
    pub(crate) status: u32,
    /// From post to failure, in microseconds.
    pub(crate) waited_us: u64,
    pub(crate) messages: u64,
}

impl Participant {
    /// Everything on `device`, with a CQ that has a channel and memory that takes atomics.
    pub(crate) fn new(device: usize) -> Self {
        let mut node = Node::new(device, BYTES);
        let channel = Channel::new(node.context);
        assert_eq!(
            (ibv_destroy_qp(node.qp), ibv_destroy_cq(node.cq), ibv_dereg_mr(node.mr)),
            (0, 0, 0)
        );
        node.cq = ibv_create_cq(node.context, 256, ptr::null_mut(), channel.handle, 0);
        assert!(!node.cq.is_null());
        node.qp = create_qp(node.pd, node.cq, node.cq, CAP);
        assert!(!node.qp.is_null());
        node.mr = ibv_reg_mr(node.pd, node.memory.as_mut_ptr().cast(), BYTES, ALL_ACCESS | 8);
        assert!(!node.mr.is_null());
        node.psn = node.qpn() & 0xffff;
        Self { node, channel, waits: false, receives: 0 }
    }

    pub(crate) fn connect(&mut self, peer: &Address) {
        self.node.connect(peer, &TERMS);
        self.receives = 0;
        while self.receives < RECEIVES {
            self.receive();
        }
    }

    fn receive(&mut self) {
        self.node.recv(RECEIVE, &[self.node.sge(0, 4096)]);
        self.receives += 1;
    }

    /// The next completion.
    fn completion(&self, crash: &mut Crash) -> Wc {
        let end = Instant::now() + TIME_LIMIT;
        loop {
            crash.enter(Step::Poll);
            if let Some(wc) = self.node.poll() {
                return wc;
            }
            if self.waits {
                crash.enter(Step::Event);
                Channel::arm(self.node.cq);
                // A completion from before the CQ was armed raises no event.
                if let Some(wc) = self.node.poll() {
                    return wc;
                }
                assert!(
                    self.channel.has_event(TIME_LIMIT.as_millis() as i32),
                    "no event: the survivor hangs"
                );
                self.channel.take_event();
            } else {
                assert!(Instant::now() < end, "no completion: the survivor hangs");
                std::thread::yield_now();
            }
        }
    }

    /// Requests of all kinds, one at a time, until one fails or there have been `most`.
    pub(crate) fn stream(
        &mut self,
        peer: &Address,
        most: u64,
        random: &mut Random,
        crash: &mut Crash,
    ) -> Ending {
        let mut ending = Ending::default();
        while ending.messages < most {
            let posted = Instant::now();
            self.request(peer, random, crash);
            let mut is_done = false;
            while !is_done {
                let wc = self.completion(crash);
                let is_receive = wc.wr_id == RECEIVE;
                if wc.status != OK {
                    self.receives -= u64::from(is_receive);
                    let waited_us = posted.elapsed().as_micros() as u64;
                    self.drain(is_receive, crash);
                    return Ending { status: wc.status, waited_us, ..ending };
                }
                is_done = !is_receive;
                if is_receive {
                    self.receives -= 1;
                    crash.enter(Step::PostRecv);
                    self.receive();
                }
            }
            ending.messages += 1;
        }
        ending
    }

    fn request(&self, peer: &Address, random: &mut Random, crash: &mut Crash) {
        let (opcode, len) = match random.below(8) {
            0 | 1 => (WRITE, [8, 64, 4096, 300_000][random.below(4) as usize]),
            2 => (WRITE_IMM, 100_000),
            3 | 4 => (SEND, random.below(4096) as usize),
            5 => (SEND_IMM, 0),
            6 => (READ, 5000),
            _ => (FETCH_ADD, 8),
        };
        let is_atomic = opcode == FETCH_ADD;
        crash.enter(if is_atomic { Step::Atomic } else { Step::PostSend });
        let sges = [self.node.sge(4096, len)];
        if is_atomic {
            self.fetch_add(4096, peer);
        } else {
            let is_inline = opcode == WRITE && len <= 64;
            let flags = if is_inline { SIGNALED | INLINE } else { SIGNALED };
            let to = (peer.addr + 4096, peer.rkey);
            self.node.send(Work { id: 1, opcode, flags, sges: &sges, to, ..WORK });
        }
    }

    /// Adds 1 to the peer's word.
    fn fetch_add(&self, at: usize, peer: &Address) {
        let mut sge = self.node.sge(at, 8);
        let mut wr = SendWr {
            wr_id: 1,
            next: ptr::null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: FETCH_ADD,
            flags: SIGNALED,
            imm: 0,
            remote_addr: peer.addr + WORD as u64,
            // Where other requests have their key, atomics have the first operand.
            rkey: 1,
            rest: [0, peer.rkey, 0],
        };
        assert_eq!(post_send(self.node.qp, &raw mut wr, &mut ptr::null_mut()), 0);
    }

    /// After a failure all that is posted comes back, flushed, and nothing else.
    fn drain(&mut self, is_request_left: bool, crash: &mut Crash) {
        let mut left = self.receives + u64::from(is_request_left);
        while left != 0 {
            let wc = self.completion(crash);
            assert!(wc.status != OK || wc.wr_id == RECEIVE, "{wc:?} after a failure");
            left -= 1;
        }
        assert_eq!(self.node.state(), ERR);
        assert!(self.node.poll().is_none());
        self.receives = 0;
    }

    /// A QP that is connected no more, with nothing left in it.
    pub(crate) fn reset(&self) {
        assert_eq!(to_state(self.node.qp, ERR), 0);
        assert_eq!(to_state(self.node.qp, RESET), 0);
        assert!(self.node.poll().is_none());
    }

    /// Releases everything and checks that all of it can be.
    pub(crate) fn close(self) {
        let Node { context, pd, cq, qp, mr, .. } = self.node;
        assert_eq!((ibv_destroy_qp(qp), ibv_dereg_mr(mr), ibv_destroy_cq(cq)), (0, 0, 0));
        self.channel.close();
        assert_eq!((ibv_dealloc_pd(pd), ibv_close_device(context)), (0, 0));
    }

    /// Between two processes that both run: bytes both ways, and all of them right. `meet` returns
    /// when the other side is there too.
    pub(crate) fn check(&mut self, peer: &Address, seed: u64, mut meet: impl FnMut()) {
        let pattern = |from: u32| {
            (0..30_000)
                .map(move |at: u64| (Random::new(seed ^ u64::from(from) ^ at << 32).next()) as u8)
        };
        let (half, mine) = (BYTES / 2, pattern(self.node.qpn()));
        self.node.memory[half..].fill(0);
        self.node.memory[..30_000].iter_mut().zip(mine).for_each(|(to, from)| *to = from);
        meet();
        let to = (peer.addr + half as u64, peer.rkey);
        self.node.send(Work {
            id: 1,
            opcode: WRITE_IMM,
            sges: &[self.node.sge(0, 30_000)],
            to,
            ..WORK
        });
        self.fetch_add(40_000, peer);
        let mut crash = Crash::none();
        for _ in 0..3 {
            assert_eq!(self.completion(&mut crash).status, OK);
        }
        meet();
        assert!(
            self.node.memory[half..][..30_000].iter().copied().eq(pattern(peer.qpn)),
            "wrong bytes"
        );
        assert_eq!(self.node.memory[WORD..][..8], 1u64.to_ne_bytes(), "the peer's atomic");
        meet();
    }
}
