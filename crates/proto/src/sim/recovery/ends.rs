//! The two ends, with what each has in its process.

use super::super::fabric::End;
use super::super::plan::Plan;
use super::fabric::Fabric;
use super::laws::Laws;
use super::observed::Observed;
use crate::control::Time;
use crate::cts::{CtsWords, cts_halves};
use crate::endpoint::Endpoint;
use crate::rail_weights::RailWeights;
use crate::random::Random;
use crate::recovery::machine::Recovery;
use crate::recovery::machine::{Action, Role};
use crate::recovery::message::Message;
use crate::recovery::rail_mask::RailMask;
use crate::recv::RecvFlow;
use crate::requests::RequestId;
use crate::send::{SendFlow, SendQueueSpace};
use crate::stripe::Striping;
use crate::{QpIndex, RING_SLOTS};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// What both ends have.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) end: End,
    pub(super) machine: Observed,
    /// What the machine has asked for and is not done yet.
    pub(super) job: Option<Action>,
    /// The queue pairs in use, by index, and how messages are laid over them.
    pub(super) in_use: Vec<usize>,
    pub(super) striping: Striping,
    /// Those of the attempt, their end, and the terms once they are known.
    pub(super) new: Vec<usize>,
    pub(super) offered: Option<Endpoint>,
    pub(super) terms: Option<(Striping, RailWeights)>,
    /// How many jobs fail.
    pub(super) refusals: u32,
    /// Whether it has not been told that its ports have changed.
    pub(super) has_port_event: bool,
    /// The number of its latest question, and whether the peer has answered that.
    pub(super) asked: Option<u32>,
    pub(super) is_heard: bool,
    /// Whether it has not been told that the control connection is back.
    pub(super) has_back: bool,
    /// It does nothing until then.
    pub(super) stopped_until: Time,
    pub(super) failure: Option<String>,
}

#[derive(Debug)]
pub(super) struct Sender {
    pub(super) caller: Caller,
    pub(super) flow: SendFlow,
    pub(super) space: SendQueueSpace,
    pub(super) ring: Vec<CtsWords>,
    pub(super) is_draining: bool,
    /// The messages that are not sent, by tag.
    pub(super) to_send: BTreeMap<u32, VecDeque<usize>>,
    pub(super) sending: Vec<(RequestId, usize)>,
}

#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) caller: Caller,
    pub(super) flow: RecvFlow,
    pub(super) next_group: usize,
    pub(super) receiving: VecDeque<(RequestId, Range<usize>)>,
}

/// What is around the ends.
#[derive(Debug)]
pub(super) struct Outside {
    pub(super) plan: Plan,
    pub(super) random: Random,
    pub(super) fabric: Fabric,
    pub(super) laws: Laws,
    pub(super) now: Time,
    /// Control messages on their way to each end, while the control connection stands.
    pub(super) frames: [VecDeque<Message>; 2],
    pub(super) is_connected: bool,
    /// What an end has been told by the other, which has failed for good.
    pub(super) goodbyes: [Option<String>; 2],
    /// Actions of both machines.
    pub(super) actions: u64,
    pub(super) recoveries: u64,
    pub(super) replayed: u32,
    pub(super) may_fail: bool,
    /// In how many steps, about, an end does what its machine has asked for.
    pub(super) job_steps: u64,
    /// One in so many steps in which a control message may arrive is one in which it does.
    pub(super) frame_steps: u64,
}

impl Caller {
    fn new(end: End, plan: &Plan, in_use: Vec<usize>, give_up: Duration) -> Self {
        let role = if end == End::Sender { Role::Sender } else { Role::Receiver };
        Self {
            end,
            machine: Observed::new(role, plan.striping.rail_numbers(), give_up),
            job: None,
            in_use,
            striping: plan.striping,
            new: Vec::new(),
            offered: None,
            terms: None,
            refusals: 0,
            has_port_event: false,
            asked: None,
            is_heard: false,
            has_back: false,
            stopped_until: Time::ZERO,
            failure: None,
        }
    }

    /// Whether there is something to do that does not depend on time.
    pub(super) fn is_busy(&self) -> bool {
        let is_reported = self.has_port_event || self.has_back;
        self.failure.is_none()
            && (is_reported
                || self.job.is_some()
                || Recovery::clone(&self.machine).poll_action().is_some())
    }

    /// Whether it does anything now.
    pub(super) fn is_awake(&self, outside: &Outside) -> bool {
        self.stopped_until <= outside.now
    }
}

impl Outside {
    /// The ports of `end` that are up.
    pub(super) fn usable(&self, end: End) -> RailMask {
        let ports = &self.fabric.ports[end as usize];
        let up = (0..self.plan.rails() as u8).filter(|rail| ports[usize::from(*rail)]);
        up.fold(RailMask::NONE, |mask, rail| mask | RailMask::only(rail))
    }

    /// `per_rail` queue pairs of `end` on each of `rails`, by index.
    pub(super) fn create(&mut self, end: End, rails: RailMask, per_rail: usize) -> Vec<usize> {
        let indices = 0..per_rail as u8 * rails.count();
        indices.map(|i| self.fabric.create(end, rails.at(i % rails.count()), QpIndex(i))).collect()
    }
}

/// Both ends, connected.
pub(super) fn connected(outside: &mut Outside, give_up: Duration) -> (Sender, Receiver) {
    let rails = outside.plan.striping.rail_numbers();
    let flow = RecvFlow::new(outside.plan.striping);
    outside.fabric.keep_receives(&[], flow.receives());
    let [near, far] =
        [End::Sender, End::Receiver].map(|end| outside.create(end, rails, outside.plan.per_rail()));
    for (a, b) in near.iter().zip(&far) {
        outside.fabric.connect(*a, *b);
        outside.fabric.connect(*b, *a);
    }
    let plan = &outside.plan;
    let mut to_send: BTreeMap<u32, VecDeque<usize>> = BTreeMap::new();
    for (i, message) in plan.messages.iter().enumerate() {
        to_send.entry(message.tag).or_default().push_back(i);
    }
    let sender = Sender {
        caller: Caller::new(End::Sender, plan, near, give_up),
        flow: plan.send_flow(),
        space: SendQueueSpace::new(plan.max_extra),
        ring: vec![CtsWords::default(); RING_SLOTS * cts_halves(plan.rails())],
        is_draining: false,
        to_send,
        sending: Vec::new(),
    };
    let receiver = Receiver {
        caller: Caller::new(End::Receiver, plan, far, give_up),
        flow,
        next_group: 0,
        receiving: VecDeque::new(),
    };
    (sender, receiver)
}
