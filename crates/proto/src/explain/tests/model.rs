//! A model of NCCL's rings at rest: each GPU runs its program of slices, each proxy posts receives
//! ahead, and one of them is the cause of a stall. Every waiting process then asks, over a network
//! that reorders messages between processes. Each must name the cause, and none may name anything
//! else.

use crate::explain::inquiry::{EndId, Inquiry, Message};
use crate::explain::message::{Answer, Cause, Question};
use crate::explain::numbers::Numbers;
use crate::explain::operation::{Begun, BegunOperations, Call, Function, Operation, PeerRank};
use crate::explain::snapshot::{CheckedEnd, Contact, EndCheck, EndSnapshot};
use crate::explain::verdict::Verdict;
use crate::identity::Identity;
use proptest::prelude::*;
use proptest::test_runner::TestRng;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const SENDER: EndId = 0;
const RECEIVER: EndId = 1;
/// Slots in NCCL's send buffer.
const STEPS: u32 = 8;
/// The time between two checks.
const TICK: Duration = Duration::from_millis(250);
/// The age of waits that are investigated.
const LIMIT: Duration = Duration::from_secs(2);
/// The number of the operation.
const NUMBER: u64 = 41;
/// When all must know.
const END: Duration = Duration::from_secs(9);

/// What is wrong with process number `0`, or with the connection from it to the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Culprit {
    /// NCCL has not begun the operation.
    Absent(usize),
    /// The GPU stops after this many steps.
    Gpu(usize, u32),
    /// The process stops after this many steps.
    Stopped(usize, u32),
    /// Messages from this one on do not arrive.
    Data(usize, u32),
    /// Clear-to-sends from this one on do not arrive.
    ClearToSends(usize, u32),
    /// Acknowledgements from this one on do not arrive.
    Acknowledgements(usize, u32),
}

/// The connection from one process to the next.
#[derive(Debug, Default)]
struct Edge {
    total: u32,
    depth: u32,
    /// Steps that the sending GPU has handed over, and that the receiving GPU has used.
    pushed: u32,
    used: u32,
    sent: u32,
    /// The first lost message.
    data_until: Option<u32>,
    cts_until: Option<u32>,
    acknowledged_until: Option<u32>,
    has_no_sender: bool,
    has_no_receiver: bool,
}

impl Edge {
    fn posted(&self) -> u32 {
        if self.has_no_receiver { 0 } else { self.total.min(self.used + self.depth) }
    }

    fn seen(&self) -> u32 {
        self.posted().min(self.cts_until.unwrap_or(u32::MAX))
    }

    fn arrived(&self) -> u32 {
        self.sent.min(self.data_until.unwrap_or(u32::MAX))
    }

    fn acknowledged(&self) -> u32 {
        self.arrived().min(self.acknowledged_until.unwrap_or(u32::MAX))
    }

    fn can_send(&self) -> bool {
        !self.has_no_sender && self.sent < self.pushed
    }

    fn send(&mut self) -> bool {
        let sends = self.can_send() && self.sent < self.seen();
        self.sent += u32::from(sends);
        sends
    }
}

#[derive(Debug)]
struct Ring {
    /// Edge number `i` leads from process `i` to the next one.
    edges: Vec<Edge>,
    /// The slices of each GPU, with whether one is received and whether one is sent, and how many
    /// are done.
    program: Vec<(bool, bool)>,
    done: Vec<usize>,
    culprit: Culprit,
}

impl Ring {
    /// An AllReduce, `loops` times.
    fn new(size: usize, loops: usize, depth: u32, culprit: Culprit) -> Self {
        let mut program = Vec::new();
        for _ in 0..loops {
            program.push((false, true));
            program.extend(std::iter::repeat_n((true, true), 2 * size - 3));
            program.push((true, false));
        }
        let total = (loops * (2 * size - 2)) as u32;
        let mut edges: Vec<_> =
            (0..size).map(|_| Edge { total, depth, ..Edge::default() }).collect();
        match culprit {
            Culprit::Absent(k) => {
                edges[k].has_no_sender = true;
                edges[(k + size - 1) % size].has_no_receiver = true;
            }
            Culprit::Data(k, from) => edges[k].data_until = Some(from % total),
            Culprit::ClearToSends(k, from) => edges[k].cts_until = Some(from % total),
            Culprit::Acknowledgements(k, from) => edges[k].acknowledged_until = Some(from % total),
            Culprit::Gpu(..) | Culprit::Stopped(..) => {}
        }
        Self { edges, program, done: vec![0; size], culprit }
    }

    fn before(&self, i: usize) -> usize {
        (i + self.edges.len() - 1) % self.edges.len()
    }

    fn is_frozen(&self, i: usize) -> bool {
        match self.culprit {
            Culprit::Gpu(k, after) | Culprit::Stopped(k, after) => {
                k == i && self.done[i] as u32 >= after
            }
            _ => false,
        }
    }

    fn step_gpu(&mut self, i: usize) -> bool {
        let Some(&(receives, sends)) = self.program.get(self.done[i]) else { return false };
        let (from, to) = (&self.edges[self.before(i)], &self.edges[i]);
        let can = (!receives || from.arrived() > from.used)
            && (!sends || to.pushed < to.acknowledged() + STEPS);
        if self.is_frozen(i) || !can {
            return false;
        }
        let before = self.before(i);
        self.edges[before].used += u32::from(receives);
        self.edges[i].pushed += u32::from(sends);
        self.done[i] += 1;
        true
    }

    /// Runs until nothing moves.
    fn run(&mut self, random: &mut TestRng) {
        let size = self.edges.len();
        let mut order: Vec<_> = (0..2 * size).collect();
        let mut has_moved = true;
        while std::mem::take(&mut has_moved) {
            for i in (1..order.len()).rev() {
                order.swap(i, random.random_range(0..=i));
            }
            for one in &order {
                for _ in 0..random.random_range(1..5) {
                    has_moved |= if *one < size {
                        self.step_gpu(*one)
                    } else {
                        self.edges[*one - size].send()
                    };
                }
            }
        }
    }

    fn looks(&self, i: usize, time: u32) -> Vec<(EndId, EndSnapshot, Identity)> {
        let (to, from) = (&self.edges[i], &self.edges[self.before(i)]);
        let snapshot = |numbers: Numbers, sender_rank: usize, is_refused: bool| EndSnapshot {
            refusals: if is_refused { time } else { 0 },
            calls: time,
            has_requests: numbers.is_waiting(),
            numbers,
            recovers: false,
            contact: Contact::Up,
            sender_rank: Some(sender_rank as u32),
        };
        let numbers = Numbers::Sender {
            seen: to.seen(),
            sent: to.sent,
            acknowledged: to.acknowledged(),
            wants: false,
        };
        let sender = snapshot(numbers, i, to.can_send() && to.sent >= to.seen());
        let (posted, arrived) = (from.posted(), from.arrived());
        let receiver = Numbers::Receiver { posted, announced: posted, arrived, flushes: false };
        let next = identity((i + 1) % self.edges.len());
        let receiver = snapshot(receiver, self.before(i), false);
        vec![(SENDER, sender, next), (RECEIVER, receiver, identity(self.before(i)))]
    }
}

/// Only messages show its rank.
fn identity(i: usize) -> Identity {
    Identity { host: "a host".into(), pid: i as u32, rank: None, label: None }
}

/// The operation of all processes except an absent one. It waits for or with process number `peer`.
fn operation(peer: u32) -> Operation {
    let call = Call { function: Function::AllReduce, number: Some(NUMBER) };
    Operation { call, communicator: 1, name: "dp".into(), peer: PeerRank::Known(peer) }
}

/// Questions (marked true) and answers.
type Frames = VecDeque<(bool, Vec<u8>)>;

/// The processes, and the frames in flight between them.
struct Network {
    ring: Ring,
    processes: Vec<Inquiry>,
    /// By receiving process and end, in order.
    frames: BTreeMap<(usize, EndId), Frames>,
    /// Edges whose control connection is lost.
    lost: Vec<usize>,
    sent: usize,
}

impl Network {
    fn new(ring: Ring, lost: Vec<usize>) -> Self {
        let processes = (0..ring.edges.len()).map(|i| Inquiry::new(identity(i))).collect();
        Self { ring, processes, frames: BTreeMap::new(), lost, sent: 0 }
    }

    /// The edge of an end, and the process and end at its other side.
    fn other(&self, i: usize, end: EndId) -> (usize, (usize, EndId)) {
        let size = self.processes.len();
        if end == SENDER {
            (i, ((i + 1) % size, RECEIVER))
        } else {
            (self.ring.before(i), (self.ring.before(i), SENDER))
        }
    }

    fn is_stopped(&self, i: usize) -> bool {
        matches!(self.ring.culprit, Culprit::Stopped(k, _) if k == i) && self.ring.is_frozen(i)
    }

    fn run(&mut self, random: &mut TestRng) {
        let (mut now, mut ticks) = (Duration::ZERO, 0);
        while now < END {
            now += TICK;
            ticks += 1;
            for i in 0..self.processes.len() {
                self.snapshot(i, now, ticks);
                if self.processes[i].longest_wait(now).is_some_and(|age| age >= LIMIT) {
                    self.processes[i].ask(now);
                }
                self.advance(i, now);
            }
            self.deliver(now, random);
        }
    }

    fn snapshot(&mut self, i: usize, now: Duration, ticks: u32) {
        let mut looks = self.ring.looks(i, ticks);
        for (end, snapshot, _) in &mut looks {
            if self.lost.contains(&self.other(i, *end).0) {
                snapshot.contact = Contact::Lost;
            }
        }
        let is_begun = !matches!(self.ring.culprit, Culprit::Absent(k) if k == i);
        let operation = |peer: &Identity| is_begun.then(|| operation(peer.pid));
        let checked_end = |(id, snapshot, peer)| CheckedEnd {
            id,
            operation: operation(&peer),
            found: EndCheck::Snapshot(snapshot),
            peer,
            recovery: String::new(),
        };
        let mut begun = [0; Function::COUNT];
        begun[Function::AllReduce as usize] = NUMBER + u64::from(is_begun);
        let progress = BegunOperations { communicator: 1, rank: i as u32, begun };
        self.processes[i].handle_checked_ends(
            now,
            looks.into_iter().map(checked_end).collect(),
            vec![progress],
        );
    }

    fn advance(&mut self, i: usize, now: Duration) {
        if self.is_stopped(i) {
            return;
        }
        self.processes[i].advance(now);
        while let Some((end, message)) = self.processes[i].poll_message() {
            let (edge, to) = self.other(i, end);
            assert!(!self.lost.contains(&edge), "there is no control connection");
            let frame = match message {
                Message::Question(question) => (true, question.body()),
                Message::Answer(answer) => (false, answer.body()),
            };
            self.sent += 1;
            self.frames.entry(to).or_default().push_back(frame);
        }
    }

    /// Delivers the frames in flight, and handles the results.
    fn deliver(&mut self, now: Duration, random: &mut TestRng) {
        loop {
            let ready: Vec<_> = self
                .frames
                .iter()
                .filter(|(_, queue)| !queue.is_empty())
                .map(|(to, _)| *to)
                .collect();
            let Some(&(i, end)) = ready.get(random.random_range(0..ready.len().max(1))) else {
                return;
            };
            let Some((is_question, body)) =
                self.frames.get_mut(&(i, end)).and_then(VecDeque::pop_front)
            else {
                return;
            };
            if self.is_stopped(i) {
                continue;
            }
            if is_question {
                self.processes[i].handle_question(
                    now,
                    end,
                    &Question::parse(&body).expect("valid"),
                );
            } else {
                self.processes[i].handle_answer(now, end, Answer::parse(&body).expect("valid"));
            }
            self.advance(i, now);
        }
    }
}

fn culprit(size: usize) -> impl Strategy<Value = Culprit> {
    (0..6, 0..size, 0..64_u32).prop_map(|(kind, k, step)| match kind {
        0 => Culprit::Absent(k),
        1 => Culprit::Gpu(k, step),
        2 => Culprit::Stopped(k, step),
        3 => Culprit::Data(k, step),
        4 => Culprit::ClearToSends(k, step),
        _ => Culprit::Acknowledgements(k, step),
    })
}

fn plan() -> impl Strategy<Value = (Culprit, usize, usize, u32)> {
    let size = prop_oneof![4 => 2..6_usize, 2 => 6..17_usize, 1 => Just(64_usize)];
    size.prop_flat_map(|size| (culprit(size), Just(size), 1..4_usize, 1..=STEPS))
}

/// Whether `cause` is the planted one. Process numbers are ranks.
fn is_right(cause: &Cause, culprit: Culprit, size: usize) -> bool {
    let next = |k: usize| (k + 1) % size;
    let far_is =
        |k: usize| cause.far.pid == k as u32 && cause.far.rank.is_none_or(|rank| rank == k as u32);
    let is_edge = |k: usize| {
        let ends = [cause.near.pid, cause.far.pid];
        ends == [k, next(k)].map(|k| k as u32) || ends == [next(k), k].map(|k| k as u32)
    };
    let has_not = matches!(cause.verdict, Verdict::PeerHasNotSent | Verdict::PeerHasNotAsked);
    let is_reported =
        cause.operation.as_ref().is_some_and(|operation| operation.call.number == Some(NUMBER));
    match culprit {
        Culprit::Absent(k) => {
            far_is(k) && has_not && is_reported && cause.begun == Begun::No(Some(NUMBER - 1))
        }
        Culprit::Gpu(k, _) => far_is(k) && has_not && is_reported && cause.begun == Begun::Yes,
        Culprit::Stopped(k, _) => cause.verdict == Verdict::PeerSilent && far_is(k),
        Culprit::Data(k, _) => is_edge(k) && cause.verdict == Verdict::DataLost,
        Culprit::ClearToSends(k, _) => is_edge(k) && cause.verdict == Verdict::ClearToSendsLost,
        Culprit::Acknowledgements(k, _) => {
            is_edge(k) && cause.verdict == Verdict::AcknowledgementsLost
        }
    }
}

fn stuck(
    culprit: Culprit,
    size: usize,
    loops: usize,
    depth: u32,
    lost: Vec<usize>,
    random: &mut TestRng,
) -> Network {
    let mut ring = Ring::new(size, loops, depth, culprit);
    ring.run(random);
    let mut network = Network::new(ring, lost);
    network.run(random);
    network
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_process_that_waits_names_the_cause((culprit, size, loops, depth) in plan(), seed in any::<[u8; 32]>()) {
        let mut random = TestRng::from_seed(prop::test_runner::RngAlgorithm::ChaCha, &seed);
        let network = stuck(culprit, size, loops, depth, Vec::new(), &mut random);
        for (i, process) in network.processes.iter().enumerate().filter(|(i, _)| !network.is_stopped(*i)) {
            let findings = process.findings(END);
            let Some(nearest) = findings.iter().filter_map(|f| f.cause.as_ref()).min_by_key(|cause| cause.depth) else {
                let Culprit::Gpu(k, _) = culprit else {
                    prop_assert!(findings.is_empty(), "process {i} knows no cause: {findings:#?}");
                    continue;
                };
                // Its proxy has posted receives ahead, so it seems to wait like all others.
                let least_lead = process.least_lead(END).expect("there is always one");
                prop_assert!(findings.is_empty() || least_lead.who.rank == Some(k as u32), "process {i}: {least_lead:?}");
                continue;
            };
            prop_assert!(is_right(nearest, culprit, size), "process {i}: {nearest:?}");
        }
        // Two questions a second over each edge each way, and an answer to each, plus changes.
        prop_assert!(network.sent <= 2 * size * (4 * END.as_secs() as usize + 12), "{} frames", network.sent);
    }

    #[test]
    fn a_lost_control_connection_leads_to_no_wrong_name((culprit, size, loops, depth) in plan(), edge in any::<prop::sample::Index>(),
                                                         seed in any::<[u8; 32]>()) {
        let mut random = TestRng::from_seed(prop::test_runner::RngAlgorithm::ChaCha, &seed);
        let network = stuck(culprit, size, loops, depth, vec![edge.index(size)], &mut random);
        for (i, process) in network.processes.iter().enumerate().filter(|(i, _)| !network.is_stopped(*i)) {
            for cause in process.findings(END).iter().filter_map(|finding| finding.cause.as_ref()) {
                let is_honest = matches!(cause.verdict, Verdict::Unreachable | Verdict::Unacknowledged);
                prop_assert!(is_honest || is_right(cause, culprit, size), "process {i}: {cause:?}");
            }
        }
    }
}
