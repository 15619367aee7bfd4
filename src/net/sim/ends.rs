//! The two ends of a connection: those that NCCL would have, set up over simulated devices.

#![allow(unsafe_code)]

use super::control::Stream;
use super::device;
use super::fabric::{End, Fabric};
use super::plan::{Message, Plan, Terms, buffer_of, source_of};
use crate::error::{Error, Result};
use crate::host::config::{Config, Retries};
use crate::net::background::watcher::Watcher;
use crate::net::background::workers::Workers;
use crate::net::data::both_ends::{self, Outcome, RequestOf, Tested};
use crate::net::data::cts_sender::RECEIVER_QP_CAPS;
use crate::net::data::recv::{Expected, PreparedPath, RecvComm};
use crate::net::data::send::{CtsRing, SENDER_QP_CAPS, SendComm};
use crate::net::device::conn_memory::{ConnMemory, Holder};
use crate::net::device::gdr::Gdr;
use crate::net::device::nic::Nic;
use crate::net::mr::handle::MrHandle;
use crate::net::mr::regions::MemoryKind;
use crate::net::peer::state::PeerState;
use crate::net::qp::connect::flow_labels;
use crate::net::qp::init_rail::RailPort;
use crate::net::qp::priority::Priority;
use crate::net::qp::set::{InitQpSet, QpSet};
use crate::net::recovery::end::{End as RecoveredEnd, Owner};
use crate::proto::RING_SLOTS;
use crate::proto::cts::{Cts, cts_halves};
use crate::proto::endpoint::Endpoint;
use crate::proto::handshake::{Negotiated, Ring};
use crate::proto::lanes::FlowLabels;
use crate::proto::recovery::rail_mask::RailMask;
use crate::proto::requests::{Entry, RequestId};
use crate::stats::record::{ConnStats, Direction, Opening};
use crate::verbs::clock;
use crate::verbs::queue_pair::QpCaps;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Weak};
use std::thread;

/// Memory that NCCL has registered.
#[derive(Debug)]
pub(super) struct Memory(MrHandle);

impl Holder for Memory {
    fn memory(&self) -> &MrHandle {
        &self.0
    }
}

impl Memory {
    /// That of `known`: `length` bytes at `addr`.
    fn register(known: &ConnMemory, addr: u64, length: usize) -> Arc<Self> {
        // SAFETY: imaginary memory, which nobody reads or writes.
        let register = |nic: &Nic| unsafe { nic.register(addr, length, MemoryKind::Host, None) };
        known.add(register, |handle| Arc::new(Self(handle))).expect("the devices work")
    }
}

impl Owner for SendComm {
    fn end(&self) -> &dyn RecoveredEnd {
        self
    }
}

impl Owner for RecvComm {
    fn end(&self) -> &dyn RecoveredEnd {
        self
    }
}

/// A sender, and the memory of its messages.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) comm: Arc<SendComm>,
    memory: Arc<Memory>,
}

/// A receiver, and its buffers until they are deregistered.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) comm: Arc<RecvComm>,
    buffers: Vec<Arc<Memory>>,
}

/// What a connection begins with.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    pub(super) peers: [(Arc<PeerState>, Stream); 2],
    pub(super) nics: [Arc<Nic>; 2],
    /// The numbers of the queue pairs of each end, by index.
    pub(super) qps: [Vec<usize>; 2],
    pub(super) rails: usize,
    /// The address of the ring of clear-to-sends.
    pub(super) ring: u64,
}

impl Sender {
    pub(super) fn isend(&self, i: usize, plan: &Plan) -> Result<Option<RequestId>> {
        let message = plan.messages[i];
        let begun = Cell::new(None);
        let note = |entry: &Entry<_>| begun.set(Some(entry.id()));
        let (addr, length, tag) = (source_of(i), message.length, message.tag);
        let memory = &self.memory.0;
        self.comm.isend::<Returned>(addr, length, tag, || Ok(memory), note).get()?;
        Ok(begun.get())
    }

    /// The bytes that were sent, once the request is complete.
    pub(super) fn test(&self, id: RequestId) -> Result<Option<u32>> {
        let lengths = test(&*self.comm, &self.comm.requests[id.index()])?;
        Ok(lengths.map(|lengths| lengths[0]))
    }

    /// It is closed, and its memory deregistered.
    pub(super) fn close(self) {
        drop(self.comm);
        self.memory.0.close();
    }
}

impl Receiver {
    pub(super) fn irecv(&self, group: usize, plan: &Plan) -> Result<Option<RequestId>> {
        let range = plan.groups[group].clone();
        let expected = |place: usize| {
            let i = range.start + place;
            let message = plan.messages[i];
            Ok::<_, Error>(Expected {
                addr: buffer_of(i),
                length: message.posted,
                tag: message.tag,
                memory: &self.buffers[i].0,
            })
        };
        let begun = Cell::new(None);
        let note = |entry: &Entry<_>| begun.set(Some(entry.id()));
        self.comm.irecv::<Returned, _>(range.len(), expected, note).get()?;
        Ok(begun.get())
    }

    /// The bytes of each message, once the request is complete.
    pub(super) fn test(&self, id: RequestId) -> Result<Option<Vec<u32>>> {
        test(&*self.comm, &self.comm.requests[id.index()])
    }

    /// NCCL deregisters all buffers.
    pub(super) fn deregister(&mut self) {
        self.buffers.drain(..).for_each(|memory| memory.0.close());
    }

    /// It is closed, and what memory is left deregistered.
    pub(super) fn close(mut self) {
        drop(self.comm);
        self.buffers.drain(..).for_each(|memory| memory.0.close());
    }
}

/// The result of a call, or its panic.
struct Returned(thread::Result<Result<()>>);

impl Outcome for Returned {
    const SUCCESS: Self = Self(Ok(Ok(())));

    fn of(_call: &'static str, step: impl FnOnce() -> Result<()>) -> Self {
        Self(panic::catch_unwind(AssertUnwindSafe(step)))
    }

    fn from_result(_call: &'static str, result: Result<()>) -> Self {
        Self(Ok(result))
    }
}

impl Returned {
    fn get(self) -> Result<()> {
        self.0.unwrap_or_else(|panic| panic::resume_unwind(panic))
    }
}

fn test<T: Tested>(comm: &T, request: &Entry<RequestOf<T>>) -> Result<Option<Vec<u32>>> {
    let lengths = RefCell::new(None);
    let done = |done: &[u32]| *lengths.borrow_mut() = Some(done.to_vec());
    both_ends::test::<T, Returned>(comm, request, done).get()?;
    Ok(lengths.into_inner())
}

/// The device of an end with so many rails. Without recovery it is made once for each thread: what
/// happens in a run does not change it.
fn nic(end: End, terms: &Terms, rails: usize) -> Arc<Nic> {
    if terms.recovers.is_some() {
        return new_nic(end, terms, rails);
    }
    type Known = HashMap<(End, usize, bool, bool), Arc<Nic>>;
    thread_local! {
        // Never dropped: the fabric of the thread is gone before they would be.
        static KNOWN: &'static RefCell<Known> = Box::leak(Box::default());
    }
    let key = (end, rails, terms.has_lanes, terms.chains_writes);
    KNOWN.with(|known| {
        Arc::clone(known.borrow_mut().entry(key).or_insert_with(|| new_nic(end, terms, rails)))
    })
}

thread_local! {
    /// What this machine offers, which is found once.
    static GDR: Gdr = Gdr::detect();
}

fn new_nic(end: End, terms: &Terms, rails: usize) -> Arc<Nic> {
    let value = |name: &str| {
        let value = match name {
            "FERRITE_FAILOVER" if terms.recovers.is_none() => "0",
            "FERRITE_GIVE_UP" => {
                return terms.recovers.map(|recovers| recovers.give_up_s.to_string());
            }
            "FERRITE_STALL_MS" => {
                return terms.recovers.map(|recovers| recovers.stall_ms.to_string());
            }
            "FERRITE_CHAIN_WRITES" if terms.chains_writes => "1",
            "FERRITE_CHAIN_WRITES" => "0",
            "FERRITE_LANES" if terms.has_lanes => "4",
            "NCCL_IB_QPS_PER_CONNECTION" if !terms.has_lanes => "4",
            "NCCL_IB_AR_THRESHOLD" => "1000",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let config = Arc::new(Config::parse(value).expect("valid"));
    let contexts = device::open_all(end.device(0)..end.device(rails));
    let nics = GDR.with(|gdr| Nic::discover_with(gdr, &contexts, &config, &mut Vec::new()));
    assert!(nics.len() >= rails);
    let mut nic = Nic::merge(&nics[..rails], true).expect("they may be merged");
    // The schedule runs the jobs, and looks for events.
    let most_starting = terms.recovers.map_or(0, |recovers| recovers.most_starting);
    nic.workers = Arc::new(Workers::new(0, most_starting));
    if terms.recovers.is_some() {
        for card in nics.iter().flat_map(|nic| &nic.cards) {
            let watcher = Watcher::without_thread(&card.device().context, true);
            card.set_watcher(watcher.expect("descriptors"));
        }
    }
    Arc::new(nic)
}

/// One of the two ends before it is connected.
struct Idle {
    nic: Arc<Nic>,
    qps: InitQpSet,
}

impl Idle {
    /// Its queue pairs, on its rails except those `left_out`.
    fn new(
        end: End,
        terms: &Terms,
        ((rails, per_rail), left_out): ((usize, usize), RailMask),
        caps: QpCaps,
    ) -> Self {
        let nic = nic(end, terms, rails);
        let on = |(number, port)| RailPort { number, port, towards: Vec::new() };
        let numbers = RailMask::first(rails as u8) - left_out;
        let ports: Vec<_> = nic.ports_of(numbers).into_iter().map(on).collect();
        let mut qps =
            InitQpSet::new(&nic, &ports, per_rail, caps, &mut Vec::new()).expect("queue pairs");
        qps.endpoint.adaptive_routing = terms.is_adaptive;
        qps.endpoint.split = terms.is_split;
        Self { nic, qps }
    }

    fn connect(self, remote: Endpoint, terms: &Negotiated) -> (Arc<Nic>, QpSet, Endpoint) {
        let Self { nic, qps } = self;
        let priority = Priority::of_sender(&nic.config, None);
        let labels = if nic.config.failover { flow_labels(&nic) } else { Ok(FlowLabels::NONE) };
        let labels = labels.expect("random numbers");
        let connecting = qps.connect(&nic, remote, terms, priority, labels, Retries::NONE);
        let mut connecting = connecting.expect("as many as agreed");
        assert!(connecting.advance(&nic).expect("the devices obey"));
        let (qps, endpoint) = connecting.finish();
        (nic, qps, endpoint)
    }
}

impl Connection {
    /// One of `plan`.
    pub(super) fn new(plan: &Plan) -> Self {
        let terms = &plan.terms;
        let [near, far] = terms.ends;
        let far = (far.0.min(near.0), far.1);
        let all = RailMask::first(far.0 as u8);
        let left_out = terms.recovers.map_or(RailMask::NONE, |recovers| recovers.left_out & all);
        let left_out = if left_out == all { RailMask::NONE } else { left_out };
        let mut near = Idle::new(End::Sender, terms, (near, left_out), SENDER_QP_CAPS);
        let far = Idle::new(End::Receiver, terms, (far, left_out), RECEIVER_QP_CAPS);
        let halves = cts_halves(near.nic.ports.len());
        let mut ring = CtsRing::new(halves, Cts::empty_last_word).expect("memory");
        near.qps.describe_ring(&mut ring).expect("registered");
        let place = Ring {
            addr: ring.addr(),
            slots: RING_SLOTS as u32,
            slot_room: (halves * Cts::BYTES) as u32,
        };
        let agreed = Negotiated::agree(&near.qps.endpoint, &far.qps.endpoint)
            .expect("ends of one link layer")
            .over(all.count(), all - left_out);
        let offered = near.qps.endpoint.over(near.qps.rail_numbers(), all - left_out);
        let (far_nic, far_qps, answer) = far.connect(offered, &agreed);
        let (near_nic, near_qps, endpoint) = near.connect(answer.clone(), &agreed);
        let numbers =
            |qps: &QpSet| qps.qps.iter().map(|connected| connected.qp.number() as usize).collect();
        let qps = [numbers(&near_qps), numbers(&far_qps)];
        ring.lay_out(cts_halves(agreed.count.into()), Cts::empty_last_word);
        let peer = || {
            let stream = Stream::default();
            (PeerState::new("the peer".into(), stream.clone(), agreed.failover), stream)
        };
        let peers = [peer(), peer()];
        let nics = [Arc::clone(&near_nic), Arc::clone(&far_nic)];
        if agreed.failover {
            for ((peer, _), nic) in peers.iter().zip(&nics) {
                nic.cards.iter().for_each(|card| {
                    card.started_watcher().expect("set above").events().watch(peer);
                });
            }
        }
        let weights = endpoint.rail_weights_with(&answer);
        let stats = |direction, qps: &QpSet| {
            let stats = ConnStats::open(&Opening {
                direction,
                device: "sim",
                peer_host: "",
                peer_pid: 0,
                peer_rank: None,
                peer_label: None,
                connection: 1,
            });
            qps.record_in(&stats);
            stats
        };
        let stats_of_receiver = stats(Direction::Receive, &far_qps);
        let prepared = PreparedPath::new(far_qps, place, &agreed, stats_of_receiver)
            .expect("receives are posted");
        let comm = RecvComm::new(far_nic, Arc::clone(&peers[1].0), prepared, &agreed);
        let comm = Arc::new(comm);
        let owner: Weak<RecvComm> = Arc::downgrade(&comm);
        comm.start(&(owner as Weak<dyn Owner>));
        let buffer = |(i, message): (usize, &Message)| {
            Memory::register(&comm.memory, buffer_of(i), message.posted.max(1) as usize)
        };
        let buffers = plan.messages.iter().enumerate().map(buffer).collect();
        let receiver = Receiver { comm, buffers };
        let stats = stats(Direction::Send, &near_qps);
        if agreed.failover {
            clock::sleep(device::with(Fabric::time_between_ends));
        }
        let comm = SendComm::new(
            near_nic,
            Arc::clone(&peers[0].0),
            near_qps,
            ring,
            &agreed,
            weights,
            stats,
        );
        let comm = Arc::new(comm);
        let owner: Weak<SendComm> = Arc::downgrade(&comm);
        comm.start(&(owner as Weak<dyn Owner>));
        let all = (plan.messages.len() + 1) << 32;
        let memory = Memory::register(&comm.memory, source_of(0), all);
        let sender = Sender { comm, memory };
        Self { sender, receiver, peers, nics, qps, rails: agreed.count.into(), ring: place.addr }
    }
}
