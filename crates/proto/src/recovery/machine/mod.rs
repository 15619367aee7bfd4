//! The recovery of one connection at one end, as a value: what has happened goes in, what is to be done comes out.

mod state;
#[cfg(test)]
mod tests;
mod texts;
mod transitions;

use super::account::Account;
use super::action::{Action, Due, Job, Role};
use super::message::Message;
use super::rail_history::RailHistory;
use super::rail_mask::RailMask;
use super::reach::Reach;
use crate::Violation;
use crate::control::Time;
use crate::endpoint::Endpoint;
use state::{Asked, QueuePairs, State, Trouble};
use std::time::Duration;

/// How long the sender waits for the next frame of the receiver, the first time; and so much longer for each other connection that its process
/// recovers, since the receiver's host may have as many, and a card some milliseconds of commands for each. Each time that none comes, the
/// next wait is twice as long, until the connection runs.
const ANSWER_TIME: Duration = Duration::from_secs(5);
const ANSWER_TIME_OF_OTHERS: Duration = Duration::from_millis(5);
/// No wait is longer. The receiver, which learns from the sender when it begins anew, waits so long at once.
const LONGEST_ANSWER_TIME: Duration = Duration::from_secs(40);
/// How long the receiver leaves its queue pairs alone until the sender has destroyed its own, which its offer shows; and two round trips
/// beside, as far as they are known, but no more than [`LONGEST_FENCE_TIME`].
const FENCE_TIME: Duration = Duration::from_millis(50);
const LONGEST_FENCE_TIME: Duration = Duration::from_secs(1);
/// How long an end that would change its queue pairs waits for the peer to say that it hears it, and how long until it asks again. Data flows
/// meanwhile.
const ASK_TIME: Duration = Duration::from_secs(5);
/// How long outstanding sends may take before a rail is taken in all the same.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// The recovery of one connection at one end. `now` is a time that never goes back.
///
/// Its methods are of these kinds:
/// - `handle_*`: what has happened, in the order in which it has; no other method changes the state, but `poll_action`;
/// - [`Self::poll_action`]: what is to be done next, until it returns `None`; after each `handle_*`. The end of a fence, of queue pairs
///   that are created or connected, and of a resumption is then reported by its own `handle_*`, once, however it has ended;
/// - [`Self::poll_timeout`]: when [`Self::handle_timeout`] is to be called; asked after the actions;
/// - the others tell how it stands, and may be called at any time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Recovery {
    role: Role,
    /// The rails of the connection: `rails`, `own`, `told` and `peer` are among them.
    all: RailMask,
    give_up: Duration,
    /// Each role has states of its own.
    state: State,
    attempt: u32,
    /// In use while it runs.
    queue_pairs: QueuePairs,
    /// What the caller does, or has to do next, and whether it knows; nothing while it runs.
    job: Option<(Job, bool)>,
    /// The rails in use, or those of the present attempt.
    rails: RailMask,
    /// The rails that this end can use, and those of them that the peer has been told.
    own: RailMask,
    told: RailMask,
    /// The rails that the peer can use, as it said last.
    peer: RailMask,
    history: RailHistory,
    /// Whether the peer has said that it has begun the present attempt.
    has_peer_halted: bool,
    /// Receiver, halted: the sender's end, until it is connected to.
    offer: Option<Endpoint>,
    /// What this end has said last in the present attempt, besides that it has begun it.
    frame: Option<Message>,
    /// What this end would begin an attempt for, while it runs; when it may ask next, and how often it has asked.
    asked: Option<Asked>,
    next_ask: Time,
    questions: u32,
    /// When this attempt may create queue pairs.
    pause: Time,
    /// Receiver: when it fences at the latest; and whether the sender has, since the connection last ran.
    fence_by: Time,
    has_sender_fenced: bool,
    /// Since when the connection has been running, or not running.
    since: Time,
    /// Attempts since then.
    attempts: u32,
    /// There is some while it does not run, unless it has failed.
    trouble: Option<Trouble>,
    /// Sender: how often an answer has not come in time, since the connection last ran.
    late_answers: u32,
    /// How many other connections this process recovers.
    others: u32,
    /// Whether the attempt before the present one ended because a frame had not come in time.
    was_late: bool,
    /// What the sender's test has found, as the receiver is told.
    reach: Reach,
    /// Why the latest attempt was begun, or the next one will be when it has drained.
    cause: String,
    /// Messages that had arrived at the latest recovery, and now.
    arrived: Option<u32>,
    arriving: u32,
    /// Whether an end can use other rails than at the latest recovery.
    has_usable_changed: bool,
    due: Due,
}

impl Recovery {
    /// A connection that has just been set up and runs over `rails`. If nothing has helped for as long as `give_up`, it fails.
    pub fn new(role: Role, rails: RailMask, give_up: Duration) -> Self {
        Self {
            role,
            all: rails,
            give_up,
            state: State::Running,
            attempt: 0,
            queue_pairs: QueuePairs::InUse,
            job: None,
            rails,
            own: rails,
            told: rails,
            peer: rails,
            history: RailHistory::new(rails),
            has_peer_halted: false,
            offer: None,
            frame: None,
            asked: None,
            next_ask: Time::ZERO,
            questions: 0,
            pause: Time::ZERO,
            fence_by: Time::ZERO,
            has_sender_fenced: false,
            since: Time::ZERO,
            attempts: 0,
            trouble: None,
            late_answers: 0,
            others: 0,
            was_late: false,
            reach: Reach::default(),
            cause: String::new(),
            arrived: None,
            arriving: 0,
            has_usable_changed: false,
            due: Due::default(),
        }
    }

    /// The same for a connection that runs over `rails` of its rails. What the ends can use besides is said later.
    #[must_use]
    pub fn over(self, rails: RailMask) -> Self {
        let history = RailHistory::new(rails);
        Self { rails, own: rails, told: rails, peer: rails, history, ..self }
    }

    /// Whether the queue pairs may be used.
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running | State::Draining { .. })
    }

    /// Whether there are queue pairs: in use, or of an attempt.
    pub fn has_queue_pairs(&self) -> bool {
        self.queue_pairs != QueuePairs::None
    }

    /// Whether those that were in use are destroyed, and no others are in use.
    pub fn has_fenced(&self) -> bool {
        self.queue_pairs != QueuePairs::InUse
    }

    /// The rails that the peer can use, as it said last.
    pub fn usable_by_peer(&self) -> RailMask {
        self.peer
    }

    /// The present attempt; 0 before the first fault.
    #[cfg(any(test, fuzzing))]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The rails in use, or those of the present attempt.
    pub fn rails(&self) -> RailMask {
        self.rails
    }

    /// The rails that this end can use.
    pub fn usable(&self) -> RailMask {
        self.own
    }

    /// For how long the connection has been running, or not running, and the attempts since then.
    pub fn lasted(&self, now: Time) -> (Duration, u32) {
        (now.saturating_sub(self.since), self.attempts)
    }

    /// Why the latest attempt was begun; empty before the first one.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// The queue pairs in use cannot go on, because of `cause`. A fault of earlier queue pairs must not be told.
    pub fn handle_fault(&mut self, now: Time, cause: &str) {
        if self.is_running() || self.state == State::Resuming {
            self.begin_next(now, cause.to_owned());
            self.advance(now);
        }
    }

    /// The peer has said this.
    ///
    /// # Errors
    /// No Ferrite says it. The connection cannot go on.
    pub fn handle_message(&mut self, now: Time, message: Message) -> Result<(), Violation> {
        self.check(&message)?;
        if self.state == State::Failed {
            return Ok(());
        }
        if let Some(attempt) = message.attempt() {
            if attempt < self.attempt {
                return Ok(());
            }
            if attempt > self.attempt {
                let cause = match &message {
                    Message::Halt { cause, .. } => format!("told by the peer: {cause}"),
                    _ => format!("the peer is in attempt {attempt}"),
                };
                self.trust_sender(now);
                self.begin(now, attempt, cause);
            }
        }
        self.handle_present(now, message)?;
        self.advance(now);
        Ok(())
    }

    /// The control connection is back: what counts is said again.
    pub fn handle_back(&mut self, _now: Time) {
        let is_partial = self.own != self.all || self.rails != self.all;
        match self.state {
            State::Failed => {}
            State::Running | State::Draining { .. } => {
                self.due.ports |= is_partial;
                self.due.frame = self.frame.is_some();
                self.due.ask = self.asked.is_some();
            }
            _ => {
                self.due.halt = true;
                self.due.frame = self.frame.is_some();
            }
        }
    }

    /// This end can use the rails `usable`: their ports are active and have their addresses.
    pub fn handle_usable(&mut self, now: Time, usable: RailMask) {
        let usable = usable & self.all;
        if usable == self.own || self.state == State::Failed {
            return;
        }
        self.own = usable;
        self.handle_both_usable(now);
        let lost = self.rails - usable;
        match self.state {
            State::Halted if self.offer.is_none() => self.due.halt = true,
            _ if !lost.is_empty() => self.begin_next(now, format!("this end cannot use rails {lost} any more")),
            State::Running | State::Draining { .. } => self.due.ports = true,
            _ => self.due.halt = true,
        }
        self.advance(now);
    }

    /// The queue pairs that were in use are destroyed, and all of their completions have been taken in.
    pub fn handle_fenced(&mut self, now: Time) {
        if self.take_job(|job| *job == Job::Fence) {
            self.queue_pairs = QueuePairs::None;
            self.advance(now);
        }
    }

    /// Sender: the queue pairs of `attempt` are created, or why not.
    pub fn handle_created(&mut self, now: Time, attempt: u32, end: Result<Endpoint, String>) {
        if !self.take_job(|job| *job == Job::Create) {
            return;
        }
        if self.state == State::Creating && attempt == self.attempt {
            match end {
                Ok(endpoint) => {
                    self.say(Message::Offer { attempt, rails: self.rails, endpoint });
                    self.state = State::Offered { until: now + self.answer_time() };
                }
                Err(cause) => self.begin_next(now, cause),
            }
        }
        self.advance(now);
    }

    /// The queue pairs of `attempt` are connected, or why not. The receiver tells its end; the sender's is not used.
    pub fn handle_connected(&mut self, now: Time, attempt: u32, end: Result<Endpoint, String>) {
        if !self.take_job(|job| matches!(job, Job::Connect(_))) {
            return;
        }
        if self.state == State::Connecting && attempt == self.attempt {
            let until = now + self.answer_time();
            match (end, self.role) {
                (Ok(_), Role::Sender) => {
                    self.say(Message::Ready { attempt, reach: self.reach });
                    self.state = State::AwaitingAccount { until };
                }
                (Ok(endpoint), Role::Receiver) => {
                    self.say(Message::Answer { attempt, rails: self.rails, endpoint });
                    self.state = State::Answered { until };
                }
                (Err(cause), _) => self.begin_next(now, cause),
            }
        }
        self.advance(now);
    }

    /// This process recovers so many other connections.
    pub fn handle_others(&mut self, count: u32) {
        self.others = count;
    }

    /// Whether the attempt before the present one ended only because a frame of the peer had not come in time.
    pub fn was_late(&self) -> bool {
        self.was_late
    }

    /// Sender: what its test has found, before [`Self::handle_connected`].
    pub fn handle_reach(&mut self, reach: Reach) {
        self.reach = reach;
    }

    /// Receiver: what the sender has said of its test, when this end is to go on.
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// The queue pairs of `attempt` are connected, but nothing is acknowledged over the rails `dead`: they wait before they are used
    /// again beside others. The receiver finds that when it is to go on.
    pub fn handle_unreachable(&mut self, now: Time, attempt: u32, dead: RailMask) {
        self.handle_unusable(now, attempt, dead, None);
    }

    /// As [`Self::handle_unreachable`], where what is acknowledged tells `why`.
    pub fn handle_unusable(&mut self, now: Time, attempt: u32, dead: RailMask, why: Option<String>) {
        if !self.take_job(|job| matches!(job, Job::Connect(_) | Job::Resume(_))) {
            return;
        }
        if matches!(self.state, State::Connecting | State::Resuming) && attempt == self.attempt {
            self.history.handle_unreachable(now, dead);
            self.begin_without(now, dead, why);
        }
        self.advance(now);
    }

    /// The new queue pairs of `attempt` are in use. The receiver tells the account that it has composed.
    pub fn handle_resumed(&mut self, now: Time, attempt: u32, account: Option<Account>) {
        if !self.take_job(|job| matches!(job, Job::Resume(_))) {
            return;
        }
        if self.is_resuming(attempt) {
            match (account, self.role) {
                (None, Role::Receiver) => self.begin_next(now, "no account was composed".into()),
                (Some(account), Role::Receiver) => {
                    self.arriving = account.arrived();
                    self.say(Message::Account { attempt, account });
                    self.run(now);
                }
                (_, Role::Sender) => self.run(now),
            }
        }
        self.advance(now);
    }

    /// Receiver: what arrives from now on is not reported, since a completion queue or a device of this end has failed. So it does not
    /// wait for the sender's fence: the device may acknowledge what this end never hears of, and then nobody sends it again.
    pub fn handle_unreported(&mut self, now: Time) {
        if self.waits_for_fence() {
            self.fence_by = self.fence_by.min(now);
            self.advance(now);
        }
    }

    /// The control connection is lost, as far as this end knows: nothing is begun that the peer would not hear of.
    pub fn handle_lost(&mut self, now: Time) {
        if matches!(self.state, State::Draining { .. }) {
            self.state = State::Running;
            self.next_ask = now + ASK_TIME;
            self.due.go_on |= !std::mem::take(&mut self.due.drain);
        }
    }

    /// Whether something is to be begun although nothing has failed, and has not begun.
    pub fn is_about_to_change(&self) -> bool {
        self.asked.is_some() || matches!(self.state, State::Draining { .. })
    }

    /// Sender: nothing is outstanding any more.
    pub fn handle_drained(&mut self, now: Time) {
        if matches!(self.state, State::Draining { .. }) {
            // All that was sent is acknowledged: the connection works.
            self.trouble = None;
            self.take_in(now);
        }
    }

    /// When [`Self::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        let give_up = self.trouble.as_ref().map(|trouble| trouble.since.saturating_add(self.give_up));
        let candidates = self.history.usable() - self.rails;
        match self.state {
            State::Failed => None,
            State::Running => match (&self.asked, self.role) {
                (Some(asked), _) => Some(asked.until),
                (None, Role::Sender) => self.history.next_ready(candidates).map(|time| time.max(self.next_ask)),
                (None, Role::Receiver) => None,
            },
            State::Draining { until } => Some(until),
            State::Offered { until } | State::Answered { until } | State::AwaitingAccount { until } => {
                give_up.map(|time| time.min(until))
            }
            State::Halted if self.waits_for_fence() => give_up.map(|time| time.min(self.fence_by)),
            State::Halted if self.waits_for_pause() => give_up.map(|time| time.min(self.pause)),
            State::Halted | State::Creating | State::Connecting | State::Resuming => give_up,
        }
    }

    /// The time of [`Self::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Time) {
        let late = |until: Time| now >= until;
        let seconds = self.answer_time().as_secs();
        match self.state {
            State::Failed => return,
            State::Running if self.asked.as_ref().is_some_and(|asked| late(asked.until)) => {
                self.asked = None;
                self.next_ask = now + ASK_TIME;
            }
            State::Draining { until } if late(until) => self.take_in(now),
            State::Offered { until } if late(until) => {
                self.begin_after_late(now, format!("no answer within {seconds} s"));
            }
            State::Answered { until } if late(until) => {
                self.begin_after_late(now, format!("the sender was not ready within {seconds} s"));
            }
            State::AwaitingAccount { until } if late(until) => {
                self.begin_after_late(now, format!("no account within {seconds} s"));
            }
            _ => {}
        }
        self.advance(now);
    }

    /// What always holds between two calls, as the fields say.
    fn check_fields(&self) {
        let Self { role, all, state, queue_pairs, .. } = self;
        let (is_sender, has_failed) = (*role == Role::Sender, *state == State::Failed);
        debug_assert!(self.rails.is_within(*all), "rails that the connection does not have");
        debug_assert!(self.own.is_within(*all), "this end can use rails that the connection does not have");
        debug_assert!(self.told.is_within(*all), "the peer has been told of rails that the connection does not have");
        debug_assert!(self.peer.is_within(*all), "the peer can use rails that the connection does not have");
        debug_assert!(self.history.usable() == self.own & self.peer, "what both ends can use is not what each can");
        match state {
            State::Draining { .. } | State::Creating | State::Offered { .. } | State::AwaitingAccount { .. } => {
                debug_assert!(is_sender, "a receiver is in a sender's state");
            }
            State::Answered { .. } => debug_assert!(!is_sender, "a sender is in a receiver's state"),
            _ => {}
        }
        if self.is_running() {
            debug_assert!(*queue_pairs == QueuePairs::InUse, "it runs without queue pairs");
            debug_assert!(self.job.is_none(), "something is to be done while it runs");
            debug_assert!(!self.due.halt, "a halt is due while it runs");
        } else {
            debug_assert!(has_failed || self.trouble.is_some(), "it does not run, for no reason");
            debug_assert!(self.asked.is_none() || has_failed, "it asks while it does not run");
            debug_assert!(self.due.recovered.is_none(), "it has recovered and does not run");
            debug_assert!(!self.due.ask && !self.due.ports, "what is only said while it runs is due");
        }
        debug_assert!(self.asked.is_none() || *state == State::Running || has_failed, "it asks while it drains");
        debug_assert!(!self.due.drain || matches!(state, State::Draining { .. }), "a drain is due and does not begin");
        debug_assert!(self.due.failure.is_none() || has_failed, "a failure is due before it has failed");
        debug_assert!(self.offer.is_none() || !is_sender, "a sender has an offer");
        debug_assert!(
            self.offer.is_none() || *state == State::Halted || has_failed,
            "an offer is kept that is connected to"
        );
        debug_assert!(!self.has_sender_fenced || !is_sender, "a sender waits for its own fence");
        debug_assert!(self.late_answers == 0 || is_sender || !self.is_running(), "a receiver counts late answers");
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.check_fields();
        let due = &mut self.due;
        let mut take = |flag: fn(&mut Due) -> &mut bool| std::mem::take(flag(due));
        if take(|due| &mut due.halt) {
            self.told = self.own;
            let (attempt, usable, cause) = (self.attempt, self.own, self.cause.clone());
            return Some(Action::Send(Message::Halt { attempt, usable, cause }));
        }
        if take(|due| &mut due.discard) {
            return Some(Action::Discard);
        }
        if let Some(action) = self.poll_job() {
            return Some(action);
        }
        if std::mem::take(&mut self.due.frame)
            && let Some(frame) = self.frame.clone()
        {
            return Some(Action::Send(frame));
        }
        if std::mem::take(&mut self.due.ports) {
            self.told = self.own;
            return Some(Action::Send(Message::Ports { usable: self.own }));
        }
        let attempt = self.attempt;
        if let Some(number) = self.due.heard.take() {
            return Some(Action::Send(Message::Heard { attempt, number }));
        }
        if std::mem::take(&mut self.due.ask)
            && let Some(Asked { number, .. }) = self.asked
        {
            return Some(Action::Send(Message::Ask { attempt, number }));
        }
        if std::mem::take(&mut self.due.go_on) {
            return Some(Action::Continue);
        }
        if std::mem::take(&mut self.due.drain) {
            return Some(Action::Drain);
        }
        if let Some(duration) = self.due.recovered.take() {
            return Some(Action::Recovered { duration, attempts: self.attempts, rails: self.rails });
        }
        self.due.failure.take().map(Action::Fail)
    }
}
