//! The recovery of one connection at one end, as a value: events go in, and [`Action`]s come out.

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

/// How long the sender first waits for the next frame of the receiver. It adds this much for each
/// other connection that its process recovers: the receiver's host may have as many, and a card
/// takes some milliseconds of commands for each. The wait doubles each time that no frame arrives,
/// until the connection runs.
const ANSWER_TIME: Duration = Duration::from_secs(5);
const ANSWER_TIME_OF_OTHERS: Duration = Duration::from_millis(5);
/// The longest wait. The receiver learns from the sender when an attempt begins, and always waits
/// this long.
const LONGEST_ANSWER_TIME: Duration = Duration::from_secs(40);
/// How long an end that wants to change its queue pairs waits for the peer's confirmation, and the
/// pause before it asks again. Data flows meanwhile.
const ASK_TIME: Duration = Duration::from_secs(5);
/// How long outstanding sends may take before a rail is added in any case.
const DRAIN_TIME: Duration = Duration::from_secs(1);
/// The pause before the second attempt; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A connection that has run this long without a fault has recovered from all earlier ones.
const STEADY_TIME: Duration = Duration::from_secs(60);
/// How many attempts a peer may be ahead.
const MOST_AHEAD: u32 = 1000;

/// The two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The end that sends messages. It chooses the rails and makes the offer.
    Sender,
    /// The end that receives messages. It lists what is missing.
    Receiver,
}

/// The caller's next task. It executes actions in order, each before the next one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this to the peer. If the control connection is lost, drop it: important messages are
    /// repeated when it is back.
    Send(Message),
    /// Move the queue pairs in use to the error state, handle all of their completions, and destroy
    /// them. Then call `handle_fenced`.
    Fence,
    /// Sender: create queue pairs on these rails. Then call `handle_created`.
    Create {
        /// The attempt that they are for.
        attempt: u32,
        /// The rails, at least one.
        rails: RailMask,
    },
    /// Sender: connect the created queue pairs. Receiver: create queue pairs on these rails,
    /// connect them and post receives. Then call `handle_connected`.
    Connect {
        /// The attempt that they are for.
        attempt: u32,
        /// The rails, at least one.
        rails: RailMask,
        /// The peer's end, whose rails are those of `rails` in ascending order.
        remote: Endpoint,
    },
    /// Destroy what was created for an abandoned attempt, if anything.
    Discard,
    /// Sender: apply the missing list, use the new queue pairs, resend what is missing. Receiver:
    /// compose the missing list, use the new queue pairs. Then call `handle_resumed`.
    Resume {
        /// The attempt.
        attempt: u32,
        /// At the sender: the receiver's missing list.
        missing_list: Option<MissingList>,
    },
    /// Sender: begin no new send until none is outstanding, and then call `handle_drained`. The
    /// next [`Self::Fence`] or [`Self::Continue`] ends this.
    Drain,
    /// Sender: continue as before [`Self::Drain`].
    Continue,
    /// For the log: the connection runs again.
    Recovered {
        /// How long it did not run.
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
            Self::Create { attempt, rails } => {
                write!(f, "attempt {attempt}: creates queue pairs on rail(s) {rails}")
            }
            Self::Connect { attempt, rails, remote } => {
                write!(
                    f,
                    "attempt {attempt}: connects queue pairs on rail(s) {rails} to {}",
                    remote.name
                )
            }
            Self::Discard => write!(f, "destroys what was created for an earlier attempt"),
            Self::Resume { attempt, missing_list: None } => {
                write!(f, "attempt {attempt}: uses the new queue pairs")
            }
            Self::Resume { attempt, missing_list: Some(missing_list) } => {
                write!(
                    f,
                    "attempt {attempt}: uses the new queue pairs, and resends {} message(s)",
                    missing_list.missing.len()
                )
            }
            Self::Drain => write!(f, "sends nothing until all is acknowledged"),
            Self::Continue => write!(f, "resumes sending, and keeps its queue pairs"),
            Self::Recovered { duration, attempts, rails } => {
                let ms = duration.as_millis();
                write!(f, "runs on rail(s) {rails} after {ms} ms ({attempts} attempt(s))")
            }
            Self::Fail(reason) => write!(f, "fails: {reason}"),
        }
    }
}

/// Actions whose end the caller reports. There is one at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Job {
    Fence,
    Create,
    /// With the peer's end.
    Connect(Endpoint),
    /// At the sender: with the receiver's missing list.
    Resume(Option<MissingList>),
}

/// Pending work besides jobs. Each kind has room for one, however often the peer repeats itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Due {
    halt: bool,
    discard: bool,
    /// The frame of the present attempt.
    frame: bool,
    ports: bool,
    ask: bool,
    /// The number of the question to confirm.
    heard: Option<u32>,
    drain: bool,
    keep_queue_pairs: bool,
    /// How long the recovery has taken.
    recovered: Option<Duration>,
    failure: Option<String>,
}

/// The state of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    Running,
    /// Sender: waits for outstanding messages before a rail is added or a lane moves.
    Draining {
        until: Time,
    },
    /// No queue pairs are in use. The sender waits for the peer's halt and for a rail, the receiver
    /// for an offer.
    Halted,
    /// Sender: queue pairs are being created.
    Creating,
    /// Sender: waits for the answer.
    Offered {
        until: Time,
    },
    /// Queue pairs are being connected, and at the receiver also created.
    Connecting,
    /// Receiver: waits for the sender to be ready.
    Answered {
        until: Time,
    },
    /// Sender: is ready, and waits for the missing list.
    AwaitingMissingList {
        until: Time,
    },
    /// The missing list is being composed or applied, before the new queue pairs are used.
    Resuming,
    Failed,
}

#[cfg(any(test, feature = "simulator"))]
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
            Self::AwaitingMissingList { .. } => "AwaitingMissingList",
            Self::Resuming => "Resuming",
            Self::Failed => "Failed",
        }
    }
}

/// A voluntary change that this end has asked the peer about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Asked {
    /// Unique among the questions.
    number: u32,
    /// Why it is wanted.
    cause: String,
    /// When this end abandons it.
    until: Time,
}

/// Which queue pairs exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum QueuePairs {
    InUse,
    None,
    /// For the present attempt, or an earlier one that was abandoned.
    New,
}

/// Faults without a success between them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Trouble {
    since: Time,
    attempts: u32,
    cause: String,
    /// Whether the peer has sent anything since.
    is_answered: bool,
}

impl Trouble {
    /// Begins with `cause`.
    fn new(since: Time, cause: &str) -> Self {
        Self { since, attempts: 0, cause: cause.to_owned(), is_answered: false }
    }
}

/// The recovery of one connection at one end. `now` never goes backwards.
///
/// Its methods come in these groups:
/// - `handle_*`: events, in the order in which they happen; apart from `poll_action`, no other
///   method changes the state;
/// - [`Self::poll_action`]: the next action; call it after each `handle_*` until it returns `None`.
///   Report the end of a fence, of a creation or connection of queue pairs, and of a resumption
///   once by its own `handle_*`, success or not;
/// - [`Self::poll_timeout`]: when to call [`Self::handle_timeout`]; call it after the actions;
/// - the others report the state, and may be called at any time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Recovery {
    role: Role,
    /// The rails of the connection; `rails`, `own`, `reported` and `peer` are subsets.
    all: RailMask,
    give_up: Duration,
    /// Each role has its own states.
    state: State,
    attempt: u32,
    /// `InUse` while it runs.
    queue_pairs: QueuePairs,
    /// The caller's present or next job, and whether it has received it; `None` while the
    /// connection runs.
    job: Option<(Job, bool)>,
    /// The rails in use, or those of the present attempt.
    rails: RailMask,
    /// The rails that this end can use, and the subset that it has reported to the peer.
    own: RailMask,
    reported: RailMask,
    /// The rails that the peer can use, from its latest report.
    peer: RailMask,
    history: RailHistory,
    /// Whether the peer has reported that it has begun the present attempt.
    has_peer_halted: bool,
    /// Receiver, halted: the sender's end, until it is connected.
    offer: Option<Endpoint>,
    /// This end's latest frame of the present attempt after its halt.
    frame: Option<Message>,
    /// A voluntary change that was asked about, while the connection runs; when it may ask next,
    /// and how often it has asked.
    asked: Option<Asked>,
    next_ask: Time,
    questions: u32,
    /// When this attempt may create queue pairs.
    pause: Time,
    /// Receiver: whether the sender has fenced since the connection last ran, or arrivals are no
    /// longer reported.
    may_fence: bool,
    /// Since when the connection has been running, or not running.
    since: Time,
    /// Attempts since then.
    attempts: u32,
    /// Present while the connection does not run, unless it has failed.
    trouble: Option<Trouble>,
    /// How often an answer was late since the connection last ran.
    late_answers: u32,
    /// How many other connections this process recovers.
    others: u32,
    /// Whether the previous attempt ended because a frame was late.
    was_late: bool,
    /// The result of the sender's test, for the receiver.
    reach: Reach,
    /// The cause of the latest attempt, or of the next one once it has drained.
    cause: String,
    /// Messages that had arrived at the latest recovery, and now.
    arrived: Option<u32>,
    arriving: u32,
    /// Whether an end can use other rails than at the latest recovery.
    has_usable_changed: bool,
    due: Due,
}

impl Recovery {
    /// A connection that was just set up and runs over `rails`. It fails if nothing has helped for
    /// `give_up`.
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
            reported: rails,
            peer: rails,
            history: RailHistory::new(rails),
            has_peer_halted: false,
            offer: None,
            frame: None,
            asked: None,
            next_ask: Time::ZERO,
            questions: 0,
            pause: Time::ZERO,
            may_fence: false,
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

    /// Restricts it to a connection that runs over `rails` of its rails. The ends report later
    /// which others they can use.
    #[must_use]
    pub fn over(self, rails: RailMask) -> Self {
        let history = RailHistory::new(rails);
        Self { rails, own: rails, reported: rails, peer: rails, history, ..self }
    }

    /// Whether the queue pairs may be used.
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running | State::Draining { .. })
    }

    /// Whether there are queue pairs, in use or of an attempt.
    pub fn has_queue_pairs(&self) -> bool {
        self.queue_pairs != QueuePairs::None
    }

    /// Whether the old queue pairs are destroyed, and no others are in use.
    pub fn has_fenced(&self) -> bool {
        self.queue_pairs != QueuePairs::InUse
    }

    /// The rails that the peer can use, from its latest report.
    pub fn usable_by_peer(&self) -> RailMask {
        self.peer
    }

    /// The present attempt; 0 before the first fault.
    #[cfg(any(test, feature = "simulator"))]
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

    /// How long the connection has been running, or not running, and the attempts since then.
    pub fn lasted(&self, now: Time) -> (Duration, u32) {
        (now.saturating_sub(self.since), self.attempts)
    }

    /// Why the latest attempt began; empty before the first one.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// The queue pairs in use have failed because of `cause`. Do not report faults of earlier queue
    /// pairs.
    pub fn handle_fault(&mut self, now: Time, cause: &str) {
        if self.is_running() || self.state == State::Resuming {
            self.begin_next(now, cause.to_owned());
            self.advance(now);
        }
    }

    /// Handles a message from the peer.
    ///
    /// # Errors
    /// The message violates the protocol. The connection cannot continue.
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
                    Message::Halt { cause, .. } => format!("reported by the peer: {cause}"),
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

    /// The control connection is back: repeats important messages.
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
            _ if !lost.is_empty() => {
                self.begin_next(now, format!("this end can no longer use rail(s) {lost}"))
            }
            State::Running | State::Draining { .. } => self.due.ports = true,
            _ => self.due.halt = true,
        }
        self.advance(now);
    }

    /// The old queue pairs are destroyed, and all of their completions are handled.
    pub fn handle_fenced(&mut self, now: Time) {
        if self.take_job(|job| *job == Job::Fence) {
            self.queue_pairs = QueuePairs::None;
            self.advance(now);
        }
    }

    /// Sender: the queue pairs of `attempt` are created, or creating them failed.
    pub fn handle_created(&mut self, now: Time, attempt: u32, end: Result<Endpoint, String>) {
        if !self.take_job(|job| *job == Job::Create) {
            return;
        }
        if self.state == State::Creating && attempt == self.attempt {
            match end {
                Ok(endpoint) => {
                    self.send(Message::Offer { attempt, rails: self.rails, endpoint });
                    self.state = State::Offered { until: now + self.answer_time() };
                }
                Err(cause) => self.begin_next(now, cause),
            }
        }
        self.advance(now);
    }

    /// The queue pairs of `attempt` are connected, or connecting them failed. The receiver passes
    /// its end; the sender's is not used.
    pub fn handle_connected(&mut self, now: Time, attempt: u32, end: Result<Endpoint, String>) {
        if !self.take_job(|job| matches!(job, Job::Connect(_))) {
            return;
        }
        if self.state == State::Connecting && attempt == self.attempt {
            let until = now + self.answer_time();
            match (end, self.role) {
                (Ok(_), Role::Sender) => {
                    self.send(Message::Ready { attempt, reach: self.reach });
                    self.state = State::AwaitingMissingList { until };
                }
                (Ok(endpoint), Role::Receiver) => {
                    self.send(Message::Answer { attempt, rails: self.rails, endpoint });
                    self.state = State::Answered { until };
                }
                (Err(cause), _) => self.begin_next(now, cause),
            }
        }
        self.advance(now);
    }

    /// This process recovers `count` other connections.
    pub fn handle_others(&mut self, count: u32) {
        self.others = count;
    }

    /// Whether the previous attempt ended only because a frame of the peer was late.
    pub fn was_late(&self) -> bool {
        self.was_late
    }

    /// Sender: the result of its test. Call it before [`Self::handle_connected`].
    pub fn handle_reach(&mut self, reach: Reach) {
        self.reach = reach;
    }

    /// Receiver: the sender's report on its test, when this end resumes.
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// The queue pairs of `attempt` are connected, but those on the rails `dead` get no
    /// acknowledgement: these rails wait before they are used again beside others. The receiver
    /// finds that when it resumes.
    pub fn handle_unreachable(&mut self, now: Time, attempt: u32, dead: RailMask) {
        self.handle_unusable(now, attempt, dead, None);
    }

    /// [`Self::handle_unreachable`] where the acknowledgements show `why`.
    pub fn handle_unusable(
        &mut self,
        now: Time,
        attempt: u32,
        dead: RailMask,
        why: Option<String>,
    ) {
        if !self.take_job(|job| matches!(job, Job::Connect(_) | Job::Resume(_))) {
            return;
        }
        if matches!(self.state, State::Connecting | State::Resuming) && attempt == self.attempt {
            self.history.handle_unreachable(now, dead);
            self.begin_without(now, dead, why);
        }
        self.advance(now);
    }

    /// The new queue pairs of `attempt` are in use. The receiver passes the missing list that it
    /// has composed.
    pub fn handle_resumed(&mut self, now: Time, attempt: u32, missing_list: Option<MissingList>) {
        if !self.take_job(|job| matches!(job, Job::Resume(_))) {
            return;
        }
        if self.is_resuming(attempt) {
            match (missing_list, self.role) {
                (None, Role::Receiver) => {
                    self.begin_next(now, "no missing list was composed".into())
                }
                (Some(missing_list), Role::Receiver) => {
                    self.arriving = missing_list.arrived();
                    self.send(Message::MissingList { attempt, missing_list });
                    self.run(now);
                }
                (_, Role::Sender) => self.run(now),
            }
        }
        self.advance(now);
    }

    /// Receiver: arrivals are no longer reported, since a completion queue or a device of this end
    /// has failed. It does not wait for the sender's fence: the device may acknowledge messages
    /// that this end never sees, and these would not be resent.
    pub fn handle_unreported(&mut self, now: Time) {
        if self.waits_for_fence() {
            self.may_fence = true;
            self.advance(now);
        }
    }

    /// The control connection is lost, as far as this end knows: begins no change that the peer
    /// would not receive.
    pub fn handle_lost(&mut self, now: Time) {
        if matches!(self.state, State::Draining { .. }) {
            self.state = State::Running;
            self.next_ask = now + ASK_TIME;
            self.due.keep_queue_pairs |= !std::mem::take(&mut self.due.drain);
        }
    }

    /// Whether a voluntary change is planned and has not begun.
    pub fn is_about_to_change(&self) -> bool {
        self.asked.is_some() || matches!(self.state, State::Draining { .. })
    }

    /// Sender: no message is outstanding any more.
    pub fn handle_drained(&mut self, now: Time) {
        if matches!(self.state, State::Draining { .. }) {
            // Everything that was sent is acknowledged: the connection works.
            self.trouble = None;
            self.begin_drained(now);
        }
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        let give_up =
            self.trouble.as_ref().map(|trouble| trouble.since.saturating_add(self.give_up));
        let candidates = self.history.usable() - self.rails;
        match self.state {
            State::Failed => None,
            State::Running => match (&self.asked, self.role) {
                (Some(asked), _) => Some(asked.until),
                (None, Role::Sender) => {
                    self.history.next_ready(candidates).map(|time| time.max(self.next_ask))
                }
                (None, Role::Receiver) => None,
            },
            State::Draining { until } => Some(until),
            State::Offered { until }
            | State::Answered { until }
            | State::AwaitingMissingList { until } => give_up.map(|time| time.min(until)),
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
            State::Draining { until } if late(until) => self.begin_drained(now),
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

    /// The invariants between two calls, as documented at the fields.
    fn check_fields(&self) {
        let Self { role, all, state, queue_pairs, .. } = self;
        let (is_sender, has_failed) = (*role == Role::Sender, *state == State::Failed);
        debug_assert!(self.rails.is_within(*all), "rails that the connection does not have");
        debug_assert!(
            self.own.is_within(*all),
            "this end can use rails that the connection does not have"
        );
        debug_assert!(
            self.reported.is_within(*all),
            "rails are reported to the peer that the connection does not have"
        );
        debug_assert!(
            self.peer.is_within(*all),
            "the peer can use rails that the connection does not have"
        );
        debug_assert!(
            self.history.usable() == self.own & self.peer,
            "what both ends can use is not what each can"
        );
        match state {
            State::Draining { .. }
            | State::Creating
            | State::Offered { .. }
            | State::AwaitingMissingList { .. } => {
                debug_assert!(is_sender, "a receiver is in a sender's state");
            }
            State::Answered { .. } => {
                debug_assert!(!is_sender, "a sender is in a receiver's state")
            }
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
            debug_assert!(
                !self.due.ask && !self.due.ports,
                "what is only said while it runs is due"
            );
        }
        debug_assert!(
            self.asked.is_none() || *state == State::Running || has_failed,
            "it asks while it drains"
        );
        debug_assert!(
            !self.due.drain || matches!(state, State::Draining { .. }),
            "a drain is due and does not begin"
        );
        debug_assert!(
            self.due.failure.is_none() || has_failed,
            "a failure is due before it has failed"
        );
        debug_assert!(self.offer.is_none() || !is_sender, "a sender has an offer");
        debug_assert!(
            self.offer.is_none() || *state == State::Halted || has_failed,
            "an offer is kept that is connected to"
        );
        debug_assert!(!self.may_fence || !is_sender, "a sender waits for its own fence");
        debug_assert!(
            self.late_answers == 0 || !self.is_running(),
            "an answer was late before the connection last ran"
        );
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.check_fields();
        let due = &mut self.due;
        let mut take = |flag: fn(&mut Due) -> &mut bool| std::mem::take(flag(due));
        // The sender's says that it has fenced.
        let may_halt = self.role == Role::Receiver || self.queue_pairs != QueuePairs::InUse;
        if may_halt && take(|due| &mut due.halt) {
            self.reported = self.own;
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
            self.reported = self.own;
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
            return Some(Action::Recovered {
                duration,
                attempts: self.attempts,
                rails: self.rails,
            });
        }
        self.due.failure.take().map(Action::Fail)
    }
}

// Transitions between states.
impl Recovery {
    /// Checks a message from the peer against what this end knows for certain.
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
            return Err(violation!(
                "{kind:?} names rails {rails} of a connection that has rails {all}"
            ));
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

    /// Handles a message from the peer about the present attempt.
    fn handle_present(&mut self, now: Time, message: Message) -> Result<(), Violation> {
        self.trouble.iter_mut().for_each(|trouble| trouble.is_answered = true);
        self.may_fence |= self.role == Role::Receiver
            && matches!(message, Message::Halt { .. } | Message::Offer { .. });
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
                    // The sender did not know yet. It learns it from the next halt.
                    self.begin_next(
                        now,
                        format!("rails {rails} were offered, and this end can use: {}", self.own),
                    );
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
                        return Err(violation!(
                            "an answer for rails {rails} to an offer of rails {offered}"
                        ));
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
            Message::Ask { number, .. } => {
                self.due.heard = Some(number).filter(|_| self.is_running())
            }
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

    /// Handles a possible change of the rails that the ends can use.
    fn handle_both_usable(&mut self, now: Time) {
        let before = self.history.usable();
        self.history.handle_usable(now, self.own & self.peer);
        self.has_usable_changed |= before != self.history.usable();
    }

    /// The present state.
    #[cfg(any(test, feature = "simulator"))]
    pub fn state_name(&self) -> &'static str {
        self.state.name()
    }

    /// Receiver: leaves it to the sender to judge failures of a recovery that the sender has begun.
    /// It may only try a rail again.
    fn trust_sender(&mut self, now: Time) {
        if self.role == Role::Receiver
            && self.is_running()
            && let Some(trouble) = &mut self.trouble
        {
            trouble.since = now;
        }
    }

    /// Whether the queue pairs of `attempt` should still come into use.
    pub fn is_resuming(&self, attempt: u32) -> bool {
        self.state == State::Resuming && self.attempt == attempt
    }

    /// The peer's device works: no message waits for its acknowledgement. The receiver, which does
    /// not know, calls this whenever the connection runs, since the sender judges.
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

    /// Begins the next attempt, because a frame was late.
    fn begin_after_late(&mut self, now: Time, cause: String) {
        self.late_answers = self.late_answers.saturating_add(1);
        self.begin_next(now, cause);
        self.was_late = true;
    }

    /// Begins the next attempt, because the rails `dead` get no acknowledgement, or because of
    /// `why`; at once, if there are other rails.
    fn begin_without(&mut self, now: Time, dead: RailMask, why: Option<String>) {
        let has_others = !dead.is_empty() && dead != self.rails;
        let cause = || match dead.is_empty() {
            true => "new queue pairs do not reach the peer".into(),
            false => format!("no acknowledgement on rail(s) {dead}"),
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
            (self.since, self.attempts, self.may_fence) = (now, 0, false);
        }
        let trouble = self.trouble.get_or_insert_with(|| Trouble::new(now, &cause));
        trouble.attempts = trouble.attempts.saturating_add(1);
        // The sender begins, and the receiver follows: it need not repeat the sender's wait.
        let ahead = u32::from(self.role == Role::Receiver);
        self.pause = now + pause(trouble.attempts.saturating_sub(ahead));
        self.attempts = self.attempts.saturating_add(1);
        (self.attempt, self.state, self.cause) = (attempt, State::Halted, cause);
        (self.offer, self.frame, self.asked, self.has_peer_halted) = (None, None, None, false);
        self.was_late = false;
        // Waits for a job that the caller has begun already.
        self.job.take_if(|(_, is_known)| !*is_known);
        self.due = Due { halt: true, discard: self.due.discard, ..Due::default() };
    }

    /// Advances as far as possible without waiting.
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
            QueuePairs::InUse if self.waits_for_fence() => {}
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
        let has_fenced =
            self.may_fence || self.job.is_some() || self.queue_pairs != QueuePairs::InUse;
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

    /// Sender: begins to add a rail that both ends can use and that is not in use.
    fn look_for_rails(&mut self, now: Time) {
        let found = self.history.ready(now) - self.rails;
        if self.role == Role::Sender && !found.is_empty() {
            self.handle_change_request(now, format!("to use more rails: {found}"));
        }
    }

    /// Requests other queue pairs because of `cause`, although nothing has failed. Drops the
    /// present ones only when the peer has confirmed the question. Returns whether the peer is
    /// asked: not while anything else is in progress, nor soon after an unanswered question.
    pub fn handle_change_request(&mut self, now: Time, cause: String) -> bool {
        let may_ask = self.state == State::Running && self.asked.is_none() && now >= self.next_ask;
        if may_ask {
            self.questions = self.questions.wrapping_add(1);
            self.asked = Some(Asked { number: self.questions, cause, until: now + ASK_TIME });
            self.due.ask = true;
        }
        may_ask
    }

    /// Handles that the peer has confirmed the question of this `number`.
    fn handle_heard(&mut self, now: Time, number: u32) {
        let asked =
            self.asked.take_if(|asked| asked.number == number && self.state == State::Running);
        match (asked, self.role) {
            (None, _) => {}
            (Some(asked), Role::Sender) => self.begin_draining(now, asked.cause),
            // The receiver has no sends in flight.
            (Some(asked), Role::Receiver) => self.begin_next(now, asked.cause),
        }
    }

    /// Sender: lets outstanding messages complete before it begins a voluntary attempt.
    fn begin_draining(&mut self, now: Time, cause: String) {
        (self.state, self.cause) = (State::Draining { until: now + DRAIN_TIME }, cause);
        self.due.drain = true;
    }

    /// Sender: begins the voluntary attempt of [`Self::begin_draining`], for its cause.
    fn begin_drained(&mut self, now: Time) {
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
        // A due halt repeats what may have been lost with the control connection: the rails that
        // this end can use.
        self.due.ports = self.own != self.reported || self.due.halt;
        self.due.halt = false;
        (self.since, self.late_answers) = (now, 0);
        if self.role == Role::Sender {
            self.frame = None;
        }
    }

    /// Sends `message`, and repeats it when the control connection is back.
    fn send(&mut self, message: Message) {
        self.frame = Some(message);
        self.due.frame = true;
    }

    /// The next job, whose end the caller must report.
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

    /// Ends the job whose end the caller has reported, if it matches `is` and the caller has begun
    /// it.
    fn take_job(&mut self, is: impl FnOnce(&Job) -> bool) -> bool {
        self.job.take_if(|(job, is_known)| *is_known && is(job)).is_some()
    }

    fn fail(&mut self, now: Time) {
        let since = self.trouble.as_ref().map_or(now, |trouble| trouble.since);
        let first = self.trouble.as_ref().map_or("", |trouble| &trouble.cause);
        let attempts = self.trouble.as_ref().map_or(0, |trouble| trouble.attempts);
        let seconds = now.saturating_sub(since).as_secs();
        let latest = headline(&self.cause);
        let first = match headline(first) {
            first if first == latest => String::new(),
            first => format!(". First failure: {first}"),
        };
        // Of an attempt that has just begun, only why the one before ended is known.
        let is_telling = attempts <= 1 || now.saturating_sub(self.pause) >= ANSWER_TIME;
        let waited_for =
            if is_telling { format!("{}. ", self.waited_for()) } else { String::new() };
        let text = format!(
            "the connection could not be recovered within {seconds} s and {attempts} attempt(s). {}. {waited_for}Latest \
             failure: {latest}{first}",
            self.usable_rails(),
        );
        self.state = State::Failed;
        self.job.take_if(|(_, is_known)| !*is_known);
        // Nothing is written to a buffer after the error.
        if self.queue_pairs == QueuePairs::InUse && self.job.is_none() {
            self.job = Some((Job::Fence, false));
        }
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

/// The first part of a cause, which may be the whole text of a failed work request. That was logged
/// when it came, and would fill a log line.
fn headline(cause: &str) -> &str {
    cause.split_once("; ").map_or(cause, |(first, _)| first)
}

/// The pause before attempt number `attempts` in a row.
fn pause(attempts: u32) -> Duration {
    match attempts {
        0 | 1 => Duration::ZERO,
        n => FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(n - 2)).min(LONGEST_PAUSE),
    }
}

// Descriptions for people.
impl Recovery {
    /// For messages: since when and why the connection has not run, and what it waits for.
    pub fn describe(&self, now: Time) -> String {
        let seconds = now.saturating_sub(self.since).as_secs();
        format!(
            "{} attempt(s) in {seconds} s. {}. {}. Latest failure: {}",
            self.attempts,
            self.waited_for(),
            self.usable_rails(),
            headline(&self.cause),
        )
    }

    /// For messages: the rails that each end can use.
    fn usable_rails(&self) -> String {
        let Self { all, own, peer, .. } = self;
        let [own, peer] =
            [own, peer].map(|usable| if usable == all { "all".into() } else { usable.to_string() });
        let of = if all.count() > 1 { format!(", of {all}") } else { String::new() };
        format!("Usable rails: {own} here, {peer} at the peer{of}")
    }

    /// For messages: what this end waits for.
    pub fn waited_for(&self) -> String {
        let limit = self.answer_time().as_secs();
        match self.state {
            State::Halted if self.job.is_some() => {
                "The old queue pairs are not destroyed yet".into()
            }
            State::Halted if self.waits_for_pause() => "The next attempt begins soon".into(),
            State::Halted if self.role == Role::Sender && !self.has_peer_halted => {
                let is_answered = self.trouble.as_ref().is_some_and(|trouble| trouble.is_answered);
                let what = if is_answered {
                    "The peer has answered, but not the latest attempt"
                } else {
                    "The peer has not answered: its host may be down"
                };
                what.into()
            }
            State::Halted if self.role == Role::Receiver => {
                "The sender has not offered new queue pairs".into()
            }
            State::Halted => "No rail is usable at both ends".into(),
            State::Offered { .. } | State::Answered { .. } | State::AwaitingMissingList { .. } => {
                format!("The peer has not answered yet (limit: {limit} s)")
            }
            State::Creating | State::Connecting | State::Resuming => {
                "New queue pairs are being connected and tested".into()
            }
            State::Running | State::Draining { .. } | State::Failed => {
                "It failed repeatedly".into()
            }
        }
    }
}
