//! Two ends that tell each other everything, with callers that do at once what they are asked to,
//! or later.

use super::super::*;
use crate::recovery::missing_list::MissingList;
use crate::sample::endpoint;
use std::collections::VecDeque;

pub(super) const GIVE_UP: Duration = Duration::from_secs(120);
/// Events until two ends without a fault are at rest. Otherwise they never are.
const MOST_EVENTS: usize = 2000;

/// One end and its caller.
#[derive(Debug)]
pub(super) struct End {
    pub(super) machine: Recovery,
    pub(super) inbox: VecDeque<Message>,
    /// Jobs whose end is not reported yet.
    jobs: VecDeque<Action>,
    /// Whether there are queue pairs: those in use, or new ones.
    has_queue_pairs: bool,
    /// How many jobs that create or connect fail from now on.
    pub(super) refusals: u32,
    pub(super) actions: Vec<Action>,
    pub(super) drained: bool,
    /// Rails over which nothing comes through when the sender tries them.
    pub(super) dead: RailMask,
}

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) ends: [End; 2],
    pub(super) now: Time,
    pub(super) is_connected: bool,
    /// Whether the end of a job is reported only when there is nothing else to do.
    pub(super) are_jobs_slow: bool,
    /// Whether each frame comes twice.
    pub(super) comes_twice: bool,
    /// Messages that have arrived, as the receiver says.
    pub(super) arrived: u32,
    /// All that was said.
    pub(super) said: Vec<Message>,
}

impl Pair {
    /// Both ends run over `rails` rails.
    pub(super) fn new(rails: u8) -> Self {
        let end = |role| End {
            machine: Recovery::new(role, RailMask::first(rails), GIVE_UP),
            inbox: VecDeque::new(),
            jobs: VecDeque::new(),
            has_queue_pairs: true,
            refusals: 0,
            actions: Vec::new(),
            drained: true,
            dead: RailMask::NONE,
        };
        Self {
            ends: [end(Role::Sender), end(Role::Receiver)],
            now: Time::from_secs(1),
            is_connected: true,
            are_jobs_slow: false,
            comes_twice: false,
            arrived: 0,
            said: Vec::new(),
        }
    }

    pub(super) fn fault(&mut self, end: usize) {
        self.ends[end].machine.handle_fault(self.now, "a fault");
    }

    pub(super) fn usable(&mut self, end: usize, rails: u8) {
        self.ends[end].machine.handle_usable(self.now, RailMask(rails));
    }

    /// The control connection breaks; what is on its way is lost.
    pub(super) fn lose(&mut self) {
        self.is_connected = false;
        self.ends.iter_mut().for_each(|end| end.inbox.clear());
    }

    pub(super) fn back(&mut self) {
        self.is_connected = true;
        self.ends.iter_mut().for_each(|end| end.machine.handle_back(self.now));
    }

    /// One event. `false`: there is nothing to do before the next timeout.
    pub(super) fn step(&mut self) -> bool {
        for i in [0, 1] {
            if let Some(action) = self.ends[i].machine.poll_action() {
                self.act(i, action);
                return true;
            }
        }
        let finish = |pair: &mut Self| (0..2).any(|i| pair.finish(i));
        if !self.are_jobs_slow && finish(self) {
            return true;
        }
        for i in [0, 1] {
            if let Some(message) = self.ends[i].inbox.pop_front() {
                self.ends[i]
                    .machine
                    .handle_message(self.now, message)
                    .expect("what a Ferrite says");
                return true;
            }
        }
        self.are_jobs_slow && finish(self)
    }

    pub(super) fn act(&mut self, i: usize, action: Action) {
        let end = &mut self.ends[i];
        end.actions.push(action.clone());
        match action {
            Action::Send(message) => {
                self.said.push(message.clone());
                if self.is_connected {
                    let times = 1 + usize::from(self.comes_twice);
                    self.ends[1 - i].inbox.extend(std::iter::repeat_n(message, times));
                }
            }
            Action::Discard => end.has_queue_pairs = false,
            Action::Drain => end.drained = false,
            Action::Continue => end.drained = true,
            Action::Recovered { .. } | Action::Fail(_) => {}
            job => {
                assert!(end.jobs.is_empty(), "a second job at once: {job:?} after {:?}", end.jobs);
                end.jobs.push_back(job);
            }
        }
    }

    /// Reports the end of a job.
    pub(super) fn finish(&mut self, i: usize) -> bool {
        let (now, arrived) = (self.now, self.arrived);
        let End { machine, jobs, has_queue_pairs, refusals, dead, .. } = &mut self.ends[i];
        let Some(job) = jobs.pop_front() else { return false };
        let mut made = |rails: RailMask| match *refusals {
            0 => Ok(endpoint(rails.count().into(), 1, false)),
            _ => {
                *refusals -= 1;
                Err("refused".to_owned())
            }
        };
        match job {
            Action::Fence => {
                *has_queue_pairs = false;
                machine.handle_fenced(now);
            }
            Action::Create { attempt, rails } => {
                assert!(
                    !std::mem::replace(has_queue_pairs, true),
                    "the old queue pairs are still there"
                );
                machine.handle_created(now, attempt, made(rails));
            }
            Action::Connect { attempt, rails, remote } => {
                let had = std::mem::replace(has_queue_pairs, true);
                assert_eq!(
                    had,
                    i == 0,
                    "queue pairs of the sender are created before, and of the receiver now"
                );
                assert_eq!(remote.rails.len(), usize::from(rails.count()));
                let dead = rails & *dead;
                if !dead.is_empty() {
                    machine.handle_unreachable(now, attempt, dead);
                    return true;
                }
                machine.handle_connected(now, attempt, made(rails));
            }
            Action::Resume { attempt, missing_list } => {
                assert!(*has_queue_pairs);
                if i == 1 && !machine.is_resuming(attempt) {
                    // They are not taken into use.
                    *has_queue_pairs = false;
                    machine.handle_unreachable(now, attempt, RailMask::NONE);
                    return true;
                }
                assert_eq!(
                    missing_list.is_some(),
                    i == 0,
                    "the sender applies it, the receiver composes it"
                );
                let next = arrived + 1;
                let composed = MissingList { oldest: next, next, missing: Vec::new() };
                machine.handle_resumed(now, attempt, (i == 1).then_some(composed));
            }
            other => panic!("{other:?} is no job"),
        }
        true
    }

    /// Until nothing is to be done before the next timeout.
    pub(super) fn settle(&mut self) {
        let events = (0..MOST_EVENTS).take_while(|_| self.step()).count();
        assert!(
            events < MOST_EVENTS,
            "no rest: {:?}",
            self.ends.each_ref().map(|end| &end.machine)
        );
    }

    /// Lets `time` pass.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.settle();
            let next = self.ends.iter().filter_map(|end| end.machine.poll_timeout()).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            for end in &mut self.ends {
                if end.machine.poll_timeout().is_some_and(|time| time <= self.now) {
                    let before = end.machine.clone();
                    end.machine.handle_timeout(self.now);
                    assert_ne!(
                        before, end.machine,
                        "a timeout changes nothing, and would come for ever"
                    );
                }
            }
        }
        self.now = end;
    }

    /// Both ends run in one attempt over the same rails. Returns the attempt.
    pub(super) fn expect_running(&self) -> u32 {
        let [sender, receiver] = self.ends.each_ref().map(|end| &end.machine);
        assert!(sender.is_running() && receiver.is_running(), "{sender:?}\n{receiver:?}");
        assert_eq!((sender.attempt(), sender.rails()), (receiver.attempt(), receiver.rails()));
        assert!(self.ends.iter().all(|end| end.has_queue_pairs));
        sender.attempt()
    }

    /// The actions of an end, by name.
    pub(super) fn names(&self, end: usize) -> Vec<String> {
        let name = |action: &Action| match action {
            Action::Send(message) => format!("{:?}", message.kind()),
            other => format!("{other:?}").split([' ', '(']).next().unwrap_or_default().to_owned(),
        };
        self.ends[end].actions.iter().map(name).collect()
    }

    /// How often an end has recovered.
    pub(super) fn recoveries(&self, end: usize) -> usize {
        self.ends[end]
            .actions
            .iter()
            .filter(|action| matches!(action, Action::Recovered { .. }))
            .count()
    }

    pub(super) fn failure(&self, end: usize) -> Option<&str> {
        self.ends[end].actions.iter().find_map(|action| match action {
            Action::Fail(text) => Some(text.as_str()),
            _ => None,
        })
    }
}
