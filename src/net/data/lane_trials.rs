//! What a sender that has lanes, or may take some, measures, and what it wishes.

use crate::net::device::nic::Nic;
use crate::proto::automatic_lanes::{AutomaticLanes, Sent, Wish};
use crate::proto::carried::{Carried, Speed, Speeds};
use std::sync::Arc;
use std::time::Instant;

/// The measurements of one sender. A message that is timed for the statistics is one.
#[derive(Debug)]
pub(super) struct LaneTrials {
    nic: Arc<Nic>,
    /// `None`: it has as many queue pairs as it began with.
    automatic: Option<AutomaticLanes>,
    /// Since when the present measurement is under way, and what was under way then.
    begun: Option<(Instant, u64)>,
    /// Since there are these queue pairs.
    speeds: Speeds,
}

impl LaneTrials {
    /// Those of a new sender of `nic` whose first queue pair has this number. `None`: it never has lanes.
    pub(super) fn new(nic: &Arc<Nic>, qp_number: u32) -> Option<Box<Self>> {
        let automatic = nic.plan.automatic_lanes(&nic.config, qp_number);
        let new = || Box::new(Self { nic: Arc::clone(nic), automatic, begun: None, speeds: Speeds::default() });
        nic.plan.lanes.then(new)
    }

    /// Whether measurements are of use: in a trial, and where lanes may move.
    pub(super) fn are_measuring(&self, has_lanes: bool) -> bool {
        has_lanes || self.automatic.as_ref().is_some_and(AutomaticLanes::is_in_trial)
    }

    /// The message that is timed has been posted: with it, so many bytes are under way.
    pub(super) fn handle_begun(&mut self, under_way: u64) {
        self.begun = Some((Instant::now(), under_way));
    }

    /// It has been acknowledged. So many `bytes` have been sent so far.
    pub(super) fn handle_carried(&mut self, sent: u64) {
        let Some((begun, bytes)) = self.begun.take() else { return };
        let carried = Carried { bytes, ns: u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX) };
        self.speeds.add(carried);
        self.automatic.iter_mut().for_each(|lanes| lanes.handle_carried(sent, carried));
    }

    /// There are new queue pairs.
    pub(super) fn handle_new_queue_pairs(&mut self) {
        (self.begun, self.speeds) = (None, Speeds::default());
        self.automatic.iter_mut().for_each(AutomaticLanes::handle_new_queue_pairs);
    }

    /// The speed since there are these queue pairs, if it is known.
    pub(super) fn speed(&self) -> Option<Speed> {
        self.speeds.speed()
    }

    /// Whether there is something to be decided after so many bytes.
    pub(super) fn is_due(&self, bytes: u64) -> bool {
        self.automatic.as_ref().is_some_and(|lanes| lanes.is_due(bytes))
    }

    /// Takes up lanes, or gives them up, where they are automatic: the sender has `per_rail` queue pairs on each of so many `rails`, and
    /// has sent so many `messages` of so many `bytes`.
    pub(super) fn look(&mut self, (messages, bytes): (u64, u64), (rails, per_rail): (u8, u8)) -> Option<Wish> {
        let has_room = self.nic.has_room_for_lanes();
        self.automatic.as_mut()?.look(&Sent { messages, bytes, rails, per_rail, has_room })
    }
}
