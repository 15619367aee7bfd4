//! The recovery of one connection at one end, as a value: what has happened goes in, what is to be done comes out as [`Action`]s.

use crate::control::Time;
use crate::endpoint::Endpoint;
use crate::recovery::message::Message;
use crate::recovery::missing_list::MissingList;
use crate::recovery::rail_history::RailHistory;
use crate::recovery::rail_mask::RailMask;
use crate::recovery::reach::Reach;
use crate::{Violation, violation};
use std::fmt;
use std::time::Duration;

#[cfg(test)]
mod tests;

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
/// The pause before the second attempt; with each further one it is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// A pause is no longer than this.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A connection that has run so long without a fault has recovered from all before.
const STEADY_TIME: Duration = Duration::from_secs(60);
/// How many attempts a peer may be ahead.
const MOST_AHEAD: u32 = 1000;

/// Which end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The one that sends messages. It chooses the rails and makes the offer.
    Sender,
    /// The one that receives messages. It says what is missing.
    Receiver,
}

/// What the caller has to do next. Actions are carried out in their order, each before the next one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this to the peer. If the control connection is lost, nothing is sent: what counts is said again when it is back.
    Send(Message),
    /// Put the queue pairs that are in use into the error state, take in all of their completions, and destroy them. Then
    /// `handle_fenced`.
    Fence,
    /// Sender: create queue pairs on these rails. Then `handle_created`.
    Create {
        /// The attempt that they are for.
        attempt: u32,
        /// The rails, at least one.
        rails: RailMask,
    },
    /// Sender: connect the queue pairs that were created. Receiver: create queue pairs on these rails, connect them and post
    /// receives. Then `handle_connected`.
    Connect {
        /// The attempt that they are for.
        attempt: u32,
        /// The rails, at least one.
        rails: RailMask,
        /// The peer's end, whose rails are those of `rails` in ascending order.
        remote: Endpoint,
    },
    /// Destroy what was created for an attempt that was given up. There may be nothing.
    Discard,
    /// Sender: apply the missing list, use the new queue pairs, send again what is missing. Receiver: compose the missing list, use the
    /// new queue pairs. Then `handle_resumed`.
    Resume {
        /// The attempt.
        attempt: u32,
        /// What the receiver has said, at the sender.
        missing_list: Option<MissingList>,
    },
    /// Sender: begin no new send until none is outstanding. Then `handle_drained`. It ends with the next [`Self::Fence`] or
    /// [`Self::Continue`].
    Drain,
    /// Sender: go on as before [`Self::Drain`].
    Continue,
    /// For the log: the connection runs again.
    Recovered {
        /// How long it did not.
        duration: Duration,
        /// How many attempts it took.
        attempts: u32,
        /// The rails that it uses.
        rails: RailMask,
    },
    /// The connection has failed for good, for this reason.
    Fail(String),
}

/// For the log: what this end does.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(message) => write!(f, "sends {message}"),
            Self::Fence => write!(f, "destroys its queue pairs"),
            Self::Create { attempt, rails } => write!(f, "attempt {attempt}: creates queue pairs on rail(s) {rails}"),
            Self::Connect { attempt, rails, remote } => {
                write!(f, "attempt {attempt}: connects queue pairs on rail(s) {rails} to {}", remote.name)
            }
            Self::Discard => write!(f, "destroys what was created for an earlier attempt"),
            Self::Resume { attempt, missing_list: None } => write!(f, "attempt {attempt}: uses the new queue pairs"),
            Self::Resume { attempt, missing_list: Some(missing_list) } => {
                write!(
                    f,
                    "attempt {attempt}: uses the new queue pairs, and sends again {} message(s)",
                    missing_list.missing.len()
                )
            }
            Self::Drain => write!(f, "sends nothing until all is acknowledged"),
            Self::Continue => write!(f, "sends again, and keeps its queue pairs"),
            Self::Recovered { duration, attempts, rails } => {
                let ms = duration.as_millis();
                write!(f, "has recovered on rail(s) {rails}, after {ms} ms and {attempts} attempt(s)")
            }
            Self::Fail(reason) => write!(f, "fails: {reason}"),
        }
    }
}

/// Actions that the caller reports the end of. There is one at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Job {
    Fence,
    Create,
    /// With the peer's end.
    Connect(Endpoint),
    /// With what the receiver has said, at the sender.
    Resume(Option<MissingList>),
}

/// What is to be done next, besides jobs. There is room for each once, whatever the peer says how often.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Due {
    halt: bool,
    discard: bool,
    /// The frame of the present attempt.
    frame: bool,
    ports: bool,
    ask: bool,
    /// The number of the question that is answered.
    heard: Option<u32>,
    drain: bool,
    keep_queue_pairs: bool,
    /// How long the recovery has taken.
    recovered: Option<Duration>,
    failure: Option<String>,
}

/// How far an end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    Running,
    /// Sender: a rail is to be taken in, or a lane to get another path, and what is outstanding completes before.
    Draining {
        until: Time,
    },
    /// No queue pairs are used. The sender waits for the peer's halt and for a rail, the receiver for an offer.
    Halted,
    /// Sender: queue pairs are being created.
    Creating,
    /// Sender: waits for the answer.
    Offered {
        until: Time,
    },
    /// Queue pairs are being connected; at the receiver they are created, too.
    Connecting,
    /// Receiver: waits for the sender to be ready.
    Answered {
        until: Time,
    },
    /// Sender: is ready and waits for the missing list.
    AwaitingMissingList {
        until: Time,
    },
    /// The missing list is being composed or applied, and the new queue pairs come into use.
    Resuming,
    Failed,
}

#[cfg(any(test, fuzzing))]
impl State {
    /// Its name.
    fn name(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Draining { .. } => "Draining",
            Self::Halted => "Halted",
            Self::Creating => "Creating",
            Self::Offered { .. } => "Offered",
            Self::Connecting => "Connecting",
            Self::Answered { .. } => "Answered",
            Self::AwaitingMissingList { .. } => "AwaitingAccount",
            Self::Resuming => "Resuming",
            Self::Failed => "Failed",
        }
    }
}

/// What this end would do although nothing has failed, and has asked about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Asked {
    /// No earlier question has the same.
    number: u32,
    /// Why it would.
    cause: String,
    /// When it gives that up.
    until: Time,
}

/// Which queue pairs there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum QueuePairs {
    InUse,
    None,
    /// For the present attempt, or an earlier one that was given up.
    New,
}

/// Faults without a success between them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Trouble {
    since: Time,
    attempts: u32,
    cause: String,
    /// Whether the peer has said anything since.
    is_answered: bool,
}

impl Trouble {
    /// It begins with `cause`.
    fn new(since: Time, cause: &str) -> Self {
        Self { since, attempts: 0, cause: cause.to_owned(), is_answered: false }
    }
}

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
                    self.state = State::AwaitingMissingList { until };
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

    /// The new queue pairs of `attempt` are in use. The receiver tells the missing list that it has composed.
    pub fn handle_resumed(&mut self, now: Time, attempt: u32, missing_list: Option<MissingList>) {
        if !self.take_job(|job| matches!(job, Job::Resume(_))) {
            return;
        }
        if self.is_resuming(attempt) {
            match (missing_list, self.role) {
                (None, Role::Receiver) => self.begin_next(now, "no missing list was composed".into()),
                (Some(missing_list), Role::Receiver) => {
                    self.arriving = missing_list.arrived();
                    self.say(Message::MissingList { attempt, missing_list });
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
            self.due.keep_queue_pairs |= !std::mem::take(&mut self.due.drain);
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
            State::Offered { until } | State::Answered { until } | State::AwaitingMissingList { until } => {
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
            State::AwaitingMissingList { until } if late(until) => {
                self.begin_after_late(now, format!("no missing list within {seconds} s"));
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
            State::Draining { .. } | State::Creating | State::Offered { .. } | State::AwaitingMissingList { .. } => {
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
        if std::mem::take(&mut self.due.keep_queue_pairs) {
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

// How one state follows from another.
impl Recovery {
    /// Checks what the peer has said against what this end knows for certain.
    fn check(&self, message: &Message) -> Result<(), Violation> {
        let (rails, is_for) = match message {
            Message::Halt { usable, .. } | Message::Ports { usable } => (*usable, None),
            Message::Offer { rails, .. } => (*rails, Some(Role::Receiver)),
            Message::Answer { rails, .. } => (*rails, Some(Role::Sender)),
            Message::Ready { .. } => (self.all, Some(Role::Receiver)),
            Message::Ask { .. } | Message::Heard { .. } => (self.all, None),
            Message::MissingList { missing_list, .. } => {
                missing_list.check()?;
                (self.all, Some(Role::Sender))
            }
        };
        let kind = message.kind();
        if is_for.is_some_and(|role| role != self.role) {
            return Err(violation!("{kind:?} from the other end that says it"));
        }
        if !rails.is_within(self.all) {
            let all = self.all;
            return Err(violation!("{kind:?} names rails {rails} of a connection that has rails {all}"));
        }
        if let Message::Offer { endpoint, .. } | Message::Answer { endpoint, .. } = message
            && (rails.is_empty() || endpoint.rails.len() != usize::from(rails.count()))
        {
            let count = endpoint.rails.len();
            return Err(violation!("{kind:?} has queue pairs on {count} rails for rails {rails}"));
        }
        match message.attempt() {
            Some(attempt) if attempt.saturating_sub(self.attempt) > MOST_AHEAD => {
                let own = self.attempt;
                Err(violation!("{kind:?} of attempt {attempt}, while this end is in attempt {own}"))
            }
            _ => Ok(()),
        }
    }

    /// Takes in what the peer has said about the present attempt.
    fn handle_present(&mut self, now: Time, message: Message) -> Result<(), Violation> {
        self.trouble.iter_mut().for_each(|trouble| trouble.is_answered = true);
        self.has_sender_fenced |= matches!(message, Message::Offer { .. });
        match message {
            Message::Halt { usable, .. } => {
                self.has_peer_halted = true;
                self.peer = usable;
                self.handle_both_usable(now);
            }
            Message::Ports { usable } => {
                self.peer = usable;
                self.handle_both_usable(now);
            }
            Message::Offer { rails, endpoint, .. } => match self.state {
                State::Halted if !rails.is_within(self.own) => {
                    // The sender did not know yet. It learns it by the next halt.
                    self.begin_next(now, format!("rails {rails} were offered, and this end can use: {}", self.own));
                }
                State::Halted if self.offer.is_none() => {
                    self.rails = rails;
                    self.offer = Some(endpoint);
                }
                State::Answered { .. } => self.due.frame = true,
                _ => {}
            },
            Message::Answer { rails, endpoint, .. } => {
                if matches!(self.state, State::Offered { .. }) {
                    if rails != self.rails {
                        let offered = self.rails;
                        return Err(violation!("an answer for rails {rails} to an offer of rails {offered}"));
                    }
                    self.state = State::Connecting;
                    self.job = Some((Job::Connect(endpoint), false));
                }
            }
            Message::Ready { reach, .. } => match self.state {
                State::Answered { .. } => {
                    self.reach = reach;
                    self.state = State::Resuming;
                    self.job = Some((Job::Resume(None), false));
                }
                State::Running => self.due.frame = self.frame.is_some(),
                _ => {}
            },
            Message::Ask { number, .. } => self.due.heard = Some(number).filter(|_| self.is_running()),
            Message::Heard { number, .. } => self.handle_heard(now, number),
            Message::MissingList { missing_list, .. } => {
                if matches!(self.state, State::AwaitingMissingList { .. }) {
                    self.arriving = missing_list.arrived();
                    self.state = State::Resuming;
                    self.job = Some((Job::Resume(Some(missing_list)), false));
                }
            }
        }
        Ok(())
    }

    /// What one of the ends can use may have changed.
    fn handle_both_usable(&mut self, now: Time) {
        let before = self.history.usable();
        self.history.handle_usable(now, self.own & self.peer);
        self.has_usable_changed |= before != self.history.usable();
    }

    /// What state it is in.
    #[cfg(any(test, fuzzing))]
    pub fn state_name(&self) -> &'static str {
        self.state.name()
    }

    /// Receiver: whether recoveries are without success is for the sender to judge, if it has begun this one. It may only try a rail again.
    fn trust_sender(&mut self, now: Time) {
        if self.role == Role::Receiver
            && self.is_running()
            && let Some(trouble) = &mut self.trouble
        {
            trouble.since = now;
        }
    }

    /// Whether the queue pairs of `attempt` are to come into use, and nothing has ended it since that was asked for.
    pub fn is_resuming(&self, attempt: u32) -> bool {
        self.state == State::Resuming && self.attempt == attempt
    }

    /// No message waits for an acknowledgement of the peer's device: it works. The receiver, which does not know, says so whenever the
    /// connection runs, since the sender judges.
    pub fn handle_acknowledged(&mut self) {
        if self.is_running() {
            self.trouble = None;
        }
    }

    /// Begins the next attempt.
    fn begin_next(&mut self, now: Time, cause: String) {
        match self.attempt.checked_add(1) {
            Some(attempt) => self.begin(now, attempt, cause),
            None => self.fail(now),
        }
    }

    /// Begins the next attempt, because a frame has not come in time.
    fn begin_after_late(&mut self, now: Time, cause: String) {
        self.late_answers = self.late_answers.saturating_add(1);
        self.begin_next(now, cause);
        self.was_late = true;
    }

    /// Begins the next attempt, because nothing is acknowledged over the rails `dead`, or `why` else; at once, if there are others.
    fn begin_without(&mut self, now: Time, dead: RailMask, why: Option<String>) {
        let has_others = !dead.is_empty() && dead != self.rails;
        let cause = || match dead.is_empty() {
            true => "queue pairs do not reach the peer".into(),
            false => format!("rails {dead} acknowledge nothing"),
        };
        self.begin_next(now, why.unwrap_or_else(cause));
        if has_others {
            self.pause = now;
        }
    }

    /// Begins `attempt`, which is later than the present one.
    fn begin(&mut self, now: Time, attempt: u32, cause: String) {
        if self.is_running() {
            if now.saturating_sub(self.since) >= STEADY_TIME {
                self.trouble = None;
            }
            (self.since, self.attempts) = (now, 0);
            let fence_time = FENCE_TIME + self.reach.round_trip.saturating_mul(2);
            (self.fence_by, self.has_sender_fenced) = (now + fence_time.min(LONGEST_FENCE_TIME), false);
        }
        let trouble = self.trouble.get_or_insert_with(|| Trouble::new(now, &cause));
        trouble.attempts = trouble.attempts.saturating_add(1);
        // The sender begins, and the receiver follows: what the former has waited for, the latter need not wait for again.
        let ahead = u32::from(self.role == Role::Receiver);
        self.pause = now + pause(trouble.attempts.saturating_sub(ahead));
        self.attempts = self.attempts.saturating_add(1);
        (self.attempt, self.state, self.cause) = (attempt, State::Halted, cause);
        (self.offer, self.frame, self.asked, self.has_peer_halted) = (None, None, None, false);
        self.was_late = false;
        // What the caller does already is waited for.
        self.job.take_if(|(_, is_known)| !*is_known);
        self.due = Due { halt: true, discard: self.due.discard, ..Due::default() };
    }

    /// Goes on as far as nothing has to be waited for.
    fn advance(&mut self, now: Time) {
        let is_over = |trouble: &Trouble| now.saturating_sub(trouble.since) >= self.give_up;
        match self.state {
            State::Failed => {}
            State::Running => self.look_for_rails(now),
            State::Draining { .. } => {}
            _ if self.trouble.as_ref().is_some_and(is_over) => self.fail(now),
            State::Halted => self.leave_halted(now),
            _ => {}
        }
    }

    fn leave_halted(&mut self, now: Time) {
        if self.job.is_some() {
            return;
        }
        match self.queue_pairs {
            QueuePairs::InUse if self.waits_for_fence() && now < self.fence_by => {}
            QueuePairs::InUse => self.job = Some((Job::Fence, false)),
            QueuePairs::New => {
                self.due.discard = true;
                self.queue_pairs = QueuePairs::None;
            }
            QueuePairs::None => {}
        }
        if !self.waits_for_pause() || now < self.pause {
            return;
        }
        match self.role {
            Role::Sender => {
                let ready = self.history.ready(now);
                self.rails = if ready.is_empty() { self.history.usable() } else { ready };
                self.state = State::Creating;
                self.job = Some((Job::Create, false));
            }
            Role::Receiver => {
                if let Some(endpoint) = self.offer.take() {
                    self.state = State::Connecting;
                    self.job = Some((Job::Connect(endpoint), false));
                }
            }
        }
    }

    /// Receiver: whether it leaves its queue pairs alone until the sender has fenced.
    pub fn waits_for_fence(&self) -> bool {
        let has_fenced = self.has_sender_fenced || self.job.is_some() || self.queue_pairs != QueuePairs::InUse;
        self.role == Role::Receiver && self.state == State::Halted && !has_fenced
    }

    /// Whether only the pause keeps this end from creating queue pairs.
    fn waits_for_pause(&self) -> bool {
        let is_ready = match self.role {
            Role::Sender => self.has_peer_halted && !self.history.usable().is_empty(),
            Role::Receiver => self.offer.is_some(),
        };
        is_ready && self.job.is_none() && self.queue_pairs == QueuePairs::None
    }

    /// Sender: begins to take in a rail that both ends can use and that is not in use.
    fn look_for_rails(&mut self, now: Time) {
        let found = self.history.ready(now) - self.rails;
        if self.role == Role::Sender && !found.is_empty() {
            self.handle_change_request(now, format!("to use more rails: {found}"));
        }
    }

    /// Other queue pairs are wanted, although nothing has failed, because of `cause`. Those in use are given up only when the peer has said
    /// that it hears this end. Returns whether it is asked: not while something else is under way, and not again soon without success.
    pub fn handle_change_request(&mut self, now: Time, cause: String) -> bool {
        let may_ask = self.state == State::Running && self.asked.is_none() && now >= self.next_ask;
        if may_ask {
            self.questions = self.questions.wrapping_add(1);
            self.asked = Some(Asked { number: self.questions, cause, until: now + ASK_TIME });
            self.due.ask = true;
        }
        may_ask
    }

    /// The peer has heard the question of this `number`.
    fn handle_heard(&mut self, now: Time, number: u32) {
        let asked = self.asked.take_if(|asked| asked.number == number && self.state == State::Running);
        match (asked, self.role) {
            (None, _) => {}
            (Some(asked), Role::Sender) => self.begin_draining(now, asked.cause),
            // It has nothing under way.
            (Some(asked), Role::Receiver) => self.begin_next(now, asked.cause),
        }
    }

    /// Sender: has what is outstanding complete before it begins an attempt although nothing has failed.
    fn begin_draining(&mut self, now: Time, cause: String) {
        (self.state, self.cause) = (State::Draining { until: now + DRAIN_TIME }, cause);
        self.due.drain = true;
    }

    /// Sender: begins that attempt, for the cause that there was.
    fn take_in(&mut self, now: Time) {
        self.begin_next(now, self.cause.clone());
        self.advance(now);
    }

    /// The connection runs again.
    fn run(&mut self, now: Time) {
        if self.arrived != Some(self.arriving) || self.has_usable_changed {
            self.trouble = None;
        }
        (self.arrived, self.has_usable_changed) = (Some(self.arriving), false);
        self.state = State::Running;
        self.due.recovered = Some(now.saturating_sub(self.since));
        self.history.handle_running(self.rails);
        // A halt that is due says again what may have been lost with the control connection: the rails that this end can use.
        self.due.ports = self.own != self.told || self.due.halt;
        self.due.halt = false;
        self.since = now;
        if self.role == Role::Sender {
            self.frame = None;
            self.late_answers = 0;
        }
    }

    /// Says `message`, and says it again when the control connection is back.
    fn say(&mut self, message: Message) {
        self.frame = Some(message);
        self.due.frame = true;
    }

    /// What the caller has to do next and report the end of.
    fn poll_job(&mut self) -> Option<Action> {
        let (job, is_known) = self.job.as_mut()?;
        if std::mem::replace(is_known, true) {
            return None;
        }
        let (attempt, rails) = (self.attempt, self.rails);
        Some(match job {
            Job::Fence => Action::Fence,
            Job::Create => {
                self.queue_pairs = QueuePairs::New;
                Action::Create { attempt, rails }
            }
            Job::Connect(remote) => {
                self.queue_pairs = QueuePairs::New;
                Action::Connect { attempt, rails, remote: remote.clone() }
            }
            Job::Resume(missing_list) => {
                self.queue_pairs = QueuePairs::InUse;
                Action::Resume { attempt, missing_list: missing_list.take() }
            }
        })
    }

    /// Ends the job that the caller has reported the end of, if it `is` that one and the caller knows of it.
    fn take_job(&mut self, is: impl FnOnce(&Job) -> bool) -> bool {
        self.job.take_if(|(job, is_known)| *is_known && is(job)).is_some()
    }

    fn fail(&mut self, now: Time) {
        let since = self.trouble.as_ref().map_or(now, |trouble| trouble.since);
        let first = self.trouble.as_ref().map_or("", |trouble| &trouble.cause);
        let attempts = self.trouble.as_ref().map_or(0, |trouble| trouble.attempts);
        let seconds = now.saturating_sub(since).as_secs();
        let text = format!(
            "the connection could not be recovered within {seconds} s and {attempts} attempts. It began with: {first}. Last: {}. \
             Of rails {}, this end can use: {}, the peer: {}. {}",
            self.cause,
            self.all,
            self.own,
            self.peer,
            self.waited_for(),
        );
        self.state = State::Failed;
        self.job.take_if(|(_, is_known)| !*is_known);
        self.due = Due { failure: Some(text), ..Due::default() };
    }

    /// How long this end waits for the peer's next frame.
    fn answer_time(&self) -> Duration {
        match self.role {
            Role::Sender => {
                let first = ANSWER_TIME + ANSWER_TIME_OF_OTHERS.saturating_mul(self.others);
                first.saturating_mul(1 << self.late_answers.min(8)).min(LONGEST_ANSWER_TIME)
            }
            Role::Receiver => LONGEST_ANSWER_TIME,
        }
    }
}

/// The pause before attempt number `attempts` in a row.
fn pause(attempts: u32) -> Duration {
    match attempts {
        0 | 1 => Duration::ZERO,
        n => FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(n - 2)).min(LONGEST_PAUSE),
    }
}

// What it says of itself, for people.
impl Recovery {
    /// For messages: since when the connection has not run, why, and what it waits for.
    pub fn describe(&self, now: Time) -> String {
        let seconds = now.saturating_sub(self.since).as_secs();
        let (own, peer) = (self.own, self.peer);
        format!(
            "{seconds} s and {} attempt(s) so far. {}. Cause of the latest: {}. Rails that this end can use: {own}, the peer: {peer}",
            self.attempts,
            self.waited_for(),
            self.cause,
        )
    }

    /// For messages: what this end waits for.
    pub fn waited_for(&self) -> String {
        let limit = self.answer_time().as_secs();
        match self.state {
            State::Halted if self.job.is_some() => "The old queue pairs are not destroyed".into(),
            State::Halted if self.role == Role::Sender && !self.has_peer_halted => {
                let is_answered = self.trouble.as_ref().is_some_and(|trouble| trouble.is_answered);
                let what = if is_answered {
                    "The peer has answered, but not the latest attempt"
                } else {
                    "The peer has not answered"
                };
                what.into()
            }
            State::Halted if self.role == Role::Receiver => "The sender has not offered new queue pairs".into(),
            State::Halted => "There is no rail that both ends can use".into(),
            State::Offered { .. } | State::Answered { .. } | State::AwaitingMissingList { .. } => {
                format!("The peer did not answer within {limit} s")
            }
            State::Creating | State::Connecting | State::Resuming => "New queue pairs are not ready".into(),
            State::Running | State::Draining { .. } | State::Failed => "It failed again and again".into(),
        }
    }
}
