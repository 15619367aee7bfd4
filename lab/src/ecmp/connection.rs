//! One connection: both of its ends, which are the plugin's own code, and the work requests that are on its lanes.

use std::collections::VecDeque;

use nccl_net::inspect::proto::{
    Buffer, Carried, Cts, CtsWords, Imm, QpIndex, RING_SLOTS, RailWeights, RecvFlow, RequestId, SendFlow, SlotIndex,
    Speed, Speeds, Striping, Transfer, Violation,
};

use crate::ecmp::policy::Policy;

/// NCCL polls so often; us. What completes between two polls completes together.
const POLL_US: f64 = 0.5;
/// One in so many messages is timed, for the connection's speed.
const TIMED: u64 = 16;
/// From the end of a work request's last packet to its completion at both ends; us.
const LATENCY_US: f64 = 5.0;
/// Clear-to-sends in one write.
const CTS_PER_WRITE: u32 = 8;

/// Messages of a connection that have begun and are not complete.
pub(super) const DEPTH: u64 = 8;
/// A work request of which no more bytes are left is sent.
const ROUNDING: f64 = 1e-3;

/// What a connection may do now, and how large its messages are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Messages that may have begun in all, since the job began.
    pub(super) begun: u64,
    /// Buffers that may have been posted in all.
    pub(super) posted: u64,
    /// Bytes of a message.
    pub(super) bytes: u32,
}

/// A work request: a stripe.
#[derive(Debug)]
struct Work {
    request: RequestId,
    imms: [Option<Imm>; 2],
    /// Bytes that are not sent yet.
    left: f64,
}

/// What one queue pair carries.
#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<Work>,
    /// Bytes in a microsecond.
    rate: f64,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    sender: SendFlow,
    receiver: RecvFlow,
    striping: Striping,
    /// The ring of clear-to-sends.
    ring: Box<[CtsWords]>,
    lanes: Vec<Lane>,
    /// Work requests that are sent, in the order in which they arrive, each with the time and the queue pair.
    arriving: VecDeque<(f64, QpIndex, Work)>,
    sending: VecDeque<RequestId>,
    receiving: VecDeque<RequestId>,
    /// Messages that have begun; that are complete at the sender; whose buffers are posted; that are complete at the receiver.
    pub(super) begun: u64,
    pub(super) completed: u64,
    posted: u64,
    pub(super) delivered: u64,
    /// Work requests with data that were posted.
    pub(super) work_requests: u64,
    /// Number of the latest poll.
    poll: u64,
    /// The message that is timed: its number, when it has begun, and the bytes under way then.
    timed: Option<(u64, f64, u64)>,
    /// Since there are these queue pairs.
    speeds: Speeds,
}

impl Connection {
    pub(super) fn new(policy: Policy) -> Self {
        let striping = policy.striping();
        let mut sender = SendFlow::new(striping, RailWeights::from_speeds([1]));
        if policy.has_shares() {
            sender.use_lanes();
        }
        Self {
            sender,
            receiver: RecvFlow::new(striping),
            striping,
            ring: vec![CtsWords::default(); RING_SLOTS].into(),
            lanes: (0..striping.qp_count()).map(|_| Lane::default()).collect(),
            arriving: VecDeque::new(),
            sending: VecDeque::new(),
            receiving: VecDeque::new(),
            begun: 0,
            completed: 0,
            posted: 0,
            delivered: 0,
            work_requests: 0,
            poll: 0,
            timed: None,
            speeds: Speeds::default(),
        }
    }

    /// How fast the fabric carries what is under way, if that is known.
    pub(super) fn speed(&self) -> Option<Speed> {
        self.speeds.speed()
    }

    pub(super) fn lane_count(&self) -> usize {
        self.lanes.len()
    }

    /// Whether a lane has something to send.
    pub(super) fn is_busy(&self, lane: usize) -> bool {
        !self.lanes[lane].queue.is_empty()
    }

    /// The share of a large message that each lane has.
    pub(super) fn shares(&self) -> Vec<f64> {
        let weights: Vec<u64> = (0..self.striping.qp_count()).map(|qp| self.sender.weight_of(QpIndex(qp))).collect();
        let sum: u64 = weights.iter().sum();
        weights.iter().map(|weight| *weight as f64 / sum.max(1) as f64).collect()
    }

    /// Bytes that a lane has not sent yet.
    pub(super) fn bytes_left(&self, lane: usize) -> f64 {
        self.lanes[lane].queue.iter().map(|work| work.left).sum()
    }

    /// A lane sends so many bytes in a microsecond from now on.
    pub(super) fn set_rate(&mut self, lane: usize, rate: f64) {
        self.lanes[lane].rate = rate;
    }

    /// The lane that the plugin's code has found to stay slow.
    pub(super) fn poll_slow_lane(&mut self) -> Option<usize> {
        self.sender.poll_slow_lane().map(|qp| qp.0.into())
    }

    /// Goes on from time `now` to time `end`; us.
    ///
    /// # Errors
    /// The plugin's code refuses what has come.
    pub(super) fn advance(&mut self, now: f64, end: f64, limits: Limits) -> Result<(), Violation> {
        let mut now = now;
        loop {
            self.take_arrivals(now)?;
            self.post_buffers(limits)?;
            self.send(now, limits)?;
            let step = (end - now).min(self.next_event(now));
            now += step;
            self.transmit(now, step);
            if now >= end {
                return Ok(());
            }
        }
    }

    /// How long it is until a work request is sent or arrives.
    fn next_event(&self, now: f64) -> f64 {
        let arrival = self.arriving.front().map_or(f64::INFINITY, |(due, ..)| due - now);
        let sent = self.lanes.iter().filter_map(Lane::time_left);
        sent.fold(arrival, f64::min).max(0.0)
    }

    /// All lanes send for `step`, until `now`.
    fn transmit(&mut self, now: f64, step: f64) {
        for (lane, qp) in self.lanes.iter_mut().zip(0..) {
            let is_through = lane.time_left().is_some_and(|time| time <= step);
            if let Some(work) = lane.queue.front_mut() {
                work.left -= lane.rate * step;
            }
            if is_through && let Some(work) = lane.queue.pop_front() {
                self.arriving.push_back((now + LATENCY_US, QpIndex(qp), work));
            }
        }
    }

    /// Work requests that are due by `now` complete at both ends.
    fn take_arrivals(&mut self, now: f64) -> Result<(), Violation> {
        while self.arriving.front().is_some_and(|(due, ..)| *due <= now)
            && let Some((due, qp, work)) = self.arriving.pop_front()
        {
            let poll = (due / POLL_US) as u64;
            if std::mem::replace(&mut self.poll, poll) != poll {
                self.sender.handle_poll();
            }
            work.imms.into_iter().flatten().try_for_each(|imm| self.receiver.handle_immediate(qp, imm))?;
            match self.sender.has_lanes() {
                true => self.sender.handle_completion_on(work.request, qp)?,
                false => self.sender.handle_completion(work.request)?,
            }
        }
        while let Some(request) = self.sending.front() {
            if self.sender.poll_done(*request)?.is_none() {
                break;
            }
            self.completed += 1;
            self.sending.pop_front();
            if let Some((_, begun, bytes)) = self.timed.take_if(|(number, ..)| *number == self.completed) {
                self.speeds.add(Carried { bytes, ns: ((now - begun) * 1000.0) as u64 });
            }
        }
        while let Some(request) = self.receiving.front() {
            if self.receiver.poll_done(*request)?.is_none() {
                break;
            }
            self.delivered += 1;
            self.receiving.pop_front();
        }
        Ok(())
    }

    fn post_buffers(&mut self, limits: Limits) -> Result<(), Violation> {
        while self.posted < limits.posted {
            let buffer = Buffer { addr: 0, length: limits.bytes, rkeys: &[0; 4], tag: 0 };
            let Some(request) = self.receiver.post(1, |_| Ok::<_, Violation>(buffer))? else { break };
            self.posted += 1;
            self.receiving.push_back(request);
        }
        while self.receiver.is_cts_due() {
            let slots = self.receiver.take_cts(CTS_PER_WRITE);
            self.ring[slots.clone()].copy_from_slice(self.receiver.encoded_cts_narrow(slots));
        }
        Ok(())
    }

    fn send(&mut self, now: f64, limits: Limits) -> Result<(), Violation> {
        while self.begun < limits.begun {
            let ring = &self.ring;
            let read = |seq| Some(ring[SlotIndex::of(seq).index()]).filter(|words| Cts::seq_of(words[3]) == seq);
            let Some(transfer) = self.sender.submit(0, 0, limits.bytes, read)? else { break };
            self.begun += 1;
            self.sending.push_back(transfer.id);
            if self.timed.is_none()
                && self.begun.is_multiple_of(TIMED)
                && let Some((_, under_way)) = self.sender.unacknowledged()
            {
                self.timed = Some((self.begun, now, under_way));
            }
            self.post(&transfer);
        }
        Ok(())
    }

    fn post(&mut self, transfer: &Transfer) {
        for (stripe, imms) in transfer.stripes(|qp| self.sender.weight_of(qp)) {
            let work =
                Work { request: transfer.id, imms: [Some(imms.first), imms.second], left: f64::from(stripe.length) };
            self.lanes[usize::from(stripe.qp.0)].queue.push_back(work);
            self.work_requests += 1;
        }
    }

    /// What the plugin does when it recovers a connection: all queue pairs are new, what has not arrived is sent again, and shares begin
    /// anew.
    ///
    /// # Errors
    /// The plugin's code refuses that.
    pub(super) fn recover(&mut self) -> Result<(), String> {
        (self.timed, self.speeds) = (None, Speeds::default());
        self.arriving.clear();
        self.lanes.iter_mut().for_each(|lane| lane.queue.clear());
        let account = self.receiver.account(self.striping);
        let weights = RailWeights::from_speeds([1]);
        self.sender.apply_account(&account, self.striping, weights).map_err(|why| why.to_string())?;
        while let Some((transfer, _)) = self.sender.poll_replay() {
            self.post(&transfer);
        }
        Ok(())
    }
}

impl Lane {
    /// How long it takes to send the rest of the oldest work request. `None`: there is none, or it does not move.
    fn time_left(&self) -> Option<f64> {
        let left = self.queue.front()?.left;
        if left <= ROUNDING { Some(0.0) } else { (self.rate > 0.0).then(|| left / self.rate) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u32 = 1 << 20;

    /// Sends messages over lanes of these rates (bytes in a microsecond) for so long; us.
    fn run(policy: Policy, rates: &[f64], time: f64) -> Connection {
        let mut connection = Connection::new(policy);
        (0..rates.len()).for_each(|lane| connection.set_rate(lane, rates[lane]));
        let mut now = 0.0;
        while now < time {
            let limits = Limits { begun: connection.completed + 8, posted: connection.delivered + 8, bytes: BYTES };
            connection.advance(now, now + 1.0, limits).expect("the protocol holds");
            now += 1.0;
        }
        connection
    }

    /// By hand: in turn, each queue pair carries every fourth message, so four times the slowest one's rate; cut evenly, the same;
    /// with shares, the sum of all rates.
    #[test]
    fn even_shares_are_as_fast_as_the_slowest_lane_and_learnt_ones_as_fast_as_all_together() {
        let rates = [1e4, 2e4, 3e4, 4e4];
        let rate = |policy| run(policy, &rates, 1e5).delivered as f64 * f64::from(BYTES) / 1e5;
        for policy in [Policy::Turns(4), Policy::Even(4)] {
            let rate = rate(policy);
            assert!((3.9e4..4.05e4).contains(&rate), "{policy}: {rate}");
        }
        let shares = rate(Policy::Shares(4));
        assert!((8.5e4..1e5).contains(&shares), "{shares}");
    }

    #[test]
    fn a_message_is_one_work_request_or_one_for_each_lane() {
        let each = |policy, lanes| {
            let connection = run(policy, &vec![1e4; lanes], 1e4);
            connection.work_requests as f64 / connection.begun as f64
        };
        assert_eq!((each(Policy::Turns(4), 4), each(Policy::Even(4), 4), each(Policy::Shares(2), 2)), (1.0, 4.0, 2.0));
    }

    #[test]
    fn after_a_recovery_every_message_arrives_once() {
        let mut connection = run(Policy::Shares(4), &[1e4, 2e4, 3e4, 4e4], 1e3);
        assert!(connection.begun > connection.delivered);
        connection.recover().expect("the protocol holds");
        let begun = connection.begun;
        let limits = Limits { begun, posted: connection.delivered + 8, bytes: BYTES };
        connection.advance(1e3, 1e4, limits).expect("the protocol holds");
        assert_eq!((connection.completed, connection.delivered), (begun, begun));
    }
}
