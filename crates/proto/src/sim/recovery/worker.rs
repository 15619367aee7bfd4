//! What the caller of a machine does: it carries actions out, one after the other, and each takes
//! some time.

use super::super::fabric::{End, Status};
use super::super::plan::endpoint;
use super::ends::{Caller, Outside, Receiver, Sender};
use crate::QpIndex;
use crate::endpoint::Endpoint;
use crate::handshake::Negotiated;
use crate::recovery::machine::Action;
use crate::recovery::message::Message;
use crate::recovery::rail_mask::RailMask;
use crate::send::SendQueueSpace;

impl Caller {
    /// Does one thing. Returns a job that its end has to do: to fence, or to resume.
    fn work(&mut self, outside: &mut Outside) -> (bool, Option<Action>) {
        if self.failure.is_some() {
            return (false, None);
        }
        let is_heard = outside.is_connected && outside.random.one_in(outside.frame_steps);
        if let Some(text) = outside.goodbyes[self.end as usize].take_if(|_| is_heard) {
            self.failure = Some(text);
            return (true, None);
        }
        if std::mem::take(&mut self.has_port_event) {
            self.machine.handle_usable(outside.now, outside.usable(self.end));
            return (true, None);
        }
        if std::mem::take(&mut self.has_back) {
            self.machine.handle_back(outside.now);
            return (true, None);
        }
        // It is noticed some time, or never.
        if self.end == End::Sender && !outside.is_connected && outside.random.one_in(64) {
            self.machine.handle_lost(outside.now);
        }
        let is_due = self.machine.poll_timeout().is_some_and(|time| time <= outside.now);
        // Like the plugin, it also tells the time when nothing is due.
        if outside.random.one_in(if is_due { 2 } else { 32 }) {
            self.machine.handle_timeout(outside.now);
        }
        if is_due {
            return (true, None);
        }
        if let Some(job) = self.job.take() {
            if !outside.random.one_in(outside.job_steps) {
                self.job = Some(job);
                return (true, None);
            }
            return (true, self.finish(job, outside));
        }
        let Some(action) = self.machine.poll_action() else { return (false, None) };
        outside.actions += 1;
        match action {
            Action::Send(message) if outside.is_connected => {
                if let Message::Ask { number, .. } = message {
                    (self.asked, self.is_heard) = (Some(number), false);
                }
                outside.frames[self.end.other() as usize].push_back(message);
            }
            Action::Send(_) => {}
            Action::Discard => self.discard(outside),
            Action::Recovered { .. } => outside.recoveries += 1,
            Action::Fail(text) => {
                assert!(outside.may_fail, "{:?}: {text}", self.end);
                self.fail(text, outside);
            }
            Action::Drain => {
                assert!(
                    std::mem::take(&mut self.is_heard),
                    "what works is given up, and the peer has not answered"
                );
                return (true, Some(Action::Drain));
            }
            Action::Continue => return (true, Some(Action::Continue)),
            job => self.job = Some(job),
        }
        (true, None)
    }

    /// The peer has said this.
    pub(super) fn hear(&mut self, message: &Message) {
        if let Message::Heard { number, .. } = message {
            self.is_heard |= self.asked == Some(*number);
        }
    }

    /// The connection has failed for good. The peer is told.
    fn fail(&mut self, text: String, outside: &mut Outside) {
        outside.goodbyes[self.end.other() as usize] = Some(text.clone());
        self.failure = Some(text);
    }

    fn discard(&mut self, outside: &mut Outside) {
        for qp in std::mem::take(&mut self.new) {
            outside.fabric.fence(qp, &mut outside.random);
        }
    }

    fn finish(&mut self, job: Action, outside: &mut Outside) -> Option<Action> {
        let now = outside.now;
        match job {
            Action::Create { attempt, rails } => {
                // Not as many as before: lanes are taken up and given up.
                let per_rail = 1 + outside.random.index(outside.plan.per_rail());
                let end = self.create(rails, per_rail, outside);
                self.offered = end.clone().ok();
                self.machine.handle_created(now, attempt, end);
            }
            Action::Connect { attempt, rails, remote } => {
                let own = match self.end {
                    End::Sender => {
                        self.offered.clone().ok_or_else(|| "nothing was created".to_owned())
                    }
                    End::Receiver => self.create(rails, remote.rails[0].qps.len(), outside),
                };
                let connected = own.and_then(|own| self.connect(own, rails, &remote, outside));
                // The receiver's are tested when it is to go on.
                let is_tested = connected.is_ok() && self.end == End::Sender;
                match is_tested.then(|| self.dead_rails(outside)).flatten() {
                    Some(dead) => self.handle_unreachable(attempt, dead, outside),
                    None => self.machine.handle_connected(now, attempt, connected),
                }
            }
            other => return Some(other),
        }
        None
    }

    /// `per_rail` queue pairs on each of `rails`, as they are told to the peer. None, if a port is
    /// down.
    fn create(
        &mut self,
        rails: RailMask,
        per_rail: usize,
        outside: &mut Outside,
    ) -> Result<Endpoint, String> {
        assert!(self.new.is_empty(), "the queue pairs of an earlier attempt are there");
        self.check(rails, outside)?;
        let numbers = outside.create(self.end, rails, per_rail);
        let count = usize::from(rails.count());
        let mut end = endpoint(count, per_rail, outside.plan.striping.is_split());
        for (i, number) in numbers.iter().enumerate() {
            end.rails[i % count].qps[i / count].qpn = *number as u32;
        }
        self.new = numbers;
        Ok(end)
    }

    fn check(&mut self, rails: RailMask, outside: &Outside) -> Result<(), String> {
        if self.refusals > 0 {
            self.refusals -= 1;
            return Err("the device refuses".into());
        }
        if rails.is_within(outside.usable(self.end)) {
            Ok(())
        } else {
            Err("a port is down".into())
        }
    }

    fn connect(
        &mut self,
        own: Endpoint,
        rails: RailMask,
        remote: &Endpoint,
        outside: &mut Outside,
    ) -> Result<Endpoint, String> {
        self.check(rails, outside)?;
        let [sender, receiver] =
            if self.end == End::Sender { [&own, remote] } else { [remote, &own] };
        let striping = Negotiated::agree(sender, receiver)
            .expect("ends of one link layer")
            .striping
            .over(rails);
        for (i, qp) in self.new.iter().enumerate() {
            let peer = remote.qp_end(QpIndex(i as u8), striping).expect("as many queue pairs");
            outside.fabric.connect(*qp, peer.qpn as usize);
        }
        self.terms = Some((striping, sender.rail_weights_with(receiver).over(rails)));
        Ok(own)
    }

    /// Tests whether the new queue pairs reach the peer. If some do not, returns the rails of which
    /// none does.
    fn dead_rails(&mut self, outside: &mut Outside) -> Option<RailMask> {
        // As if the packets of one lane were lost.
        if self.refusals > 0 {
            self.refusals -= 1;
            let rails = self.machine.rails();
            return Some(if outside.random.one_in(2) {
                RailMask::NONE
            } else {
                RailMask::only(rails.at(0))
            });
        }
        let Outside { fabric, random, .. } = outside;
        let rails_of = |qps: &mut dyn Iterator<Item = &usize>| {
            qps.fold(RailMask::NONE, |rails, qp| rails | RailMask::only(fabric.qps[*qp].rail))
        };
        let answered = rails_of(&mut self.new.iter().filter(|qp| fabric.is_answered(**qp)));
        let silent = rails_of(&mut self.new.iter().filter(|qp| !fabric.is_answered(**qp)));
        // What is cut may also have been cut only after the test.
        (!silent.is_empty() && !random.one_in(4)).then_some(silent - answered)
    }

    /// The queue pairs of `attempt` are given up.
    fn handle_unreachable(&mut self, attempt: u32, dead: RailMask, outside: &mut Outside) {
        self.discard(outside);
        self.machine.handle_unreachable(outside.now, attempt, dead);
    }

    /// The new queue pairs come into use.
    fn install(&mut self, outside: &mut Outside) {
        let existing = outside.fabric.existing(self.end);
        assert_eq!(
            existing, self.new,
            "{:?} goes on, and queue pairs of an earlier attempt are there",
            self.end
        );
        self.in_use = std::mem::take(&mut self.new);
        self.striping = self.terms.expect("connected").0;
    }
}

impl Sender {
    pub(super) fn work(&mut self, outside: &mut Outside) -> bool {
        if self.is_draining
            && self.flow.outstanding() == 0
            && outside.random.one_in(outside.job_steps)
        {
            self.caller.machine.handle_drained(outside.now);
        }
        let (is_any, job) = self.caller.work(outside);
        let now = outside.now;
        match job {
            Some(Action::Fence) => {
                for qp in std::mem::take(&mut self.caller.in_use) {
                    outside.fabric.fence(qp, &mut outside.random);
                }
                self.is_draining = false;
                self.caller.machine.handle_fenced(now);
            }
            Some(Action::Resume { attempt, missing_list }) => {
                let (striping, weights) = self.caller.terms.expect("connected");
                let applied = self.flow.apply_missing_list(
                    &missing_list.expect("at the sender"),
                    striping,
                    weights,
                );
                if let Err(error) = applied {
                    assert!(outside.may_fail, "{error}");
                    self.caller.fail(error.to_string(), outside);
                    return true;
                }
                self.caller.install(outside);
                self.space = SendQueueSpace::new(outside.plan.max_extra);
                self.caller.machine.handle_resumed(now, attempt, None);
                if self.flow.outstanding() == 0 {
                    self.caller.machine.handle_acknowledged();
                }
            }
            Some(Action::Continue) => self.is_draining = false,
            Some(_) => self.is_draining = true,
            None => {}
        }
        is_any
    }
}

impl Receiver {
    pub(super) fn work(&mut self, outside: &mut Outside) -> bool {
        let (is_any, job) = self.caller.work(outside);
        let now = outside.now;
        match job {
            Some(Action::Fence) => {
                for qp in std::mem::take(&mut self.caller.in_use) {
                    let all = outside.fabric.fence(qp, &mut outside.random);
                    let succeeded =
                        all.into_iter().filter(|completion| completion.status == Status::Success);
                    self.handle_completions(succeeded.collect());
                }
                outside.fabric.forgets = false;
                self.caller.machine.handle_fenced(now);
            }
            Some(Action::Resume { attempt, .. }) => self.resume(attempt, outside),
            _ => {}
        }
        is_any
    }

    /// Tests the queue pairs of `attempt`, and goes on over them.
    fn resume(&mut self, attempt: u32, outside: &mut Outside) {
        let caller = &mut self.caller;
        if let Some(dead) = caller.dead_rails(outside) {
            return caller.handle_unreachable(attempt, dead, outside);
        }
        // Another attempt has begun meanwhile.
        if !caller.machine.is_resuming(attempt) {
            return caller.handle_unreachable(attempt, RailMask::NONE, outside);
        }
        caller.install(outside);
        let missing_list = self.flow.missing_list(caller.striping);
        caller.machine.handle_resumed(outside.now, attempt, Some(missing_list));
        caller.machine.handle_acknowledged();
    }
}
