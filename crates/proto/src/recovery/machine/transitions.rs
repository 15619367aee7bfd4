//! How one state of a recovery follows from another.

use super::state::{Asked, QueuePairs, State, Trouble};
use super::{
    ANSWER_TIME, ANSWER_TIME_OF_OTHERS, ASK_TIME, DRAIN_TIME, FENCE_TIME, LONGEST_ANSWER_TIME, LONGEST_FENCE_TIME,
    Recovery,
};
use crate::control::Time;
use crate::recovery::action::{Action, Due, Job, Role};
use crate::recovery::message::Message;
use crate::recovery::rail_mask::RailMask;
use crate::{Violation, violation};
use std::time::Duration;

/// The pause before the second attempt; with each further one it is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// A pause is no longer than this.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A connection that has run so long without a fault has recovered from all before.
const STEADY_TIME: Duration = Duration::from_secs(60);
/// How many attempts a peer may be ahead.
const MOST_AHEAD: u32 = 1000;

/// The pause before attempt number `attempts` in a row.
fn pause(attempts: u32) -> Duration {
    match attempts {
        0 | 1 => Duration::ZERO,
        n => FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(n - 2)).min(LONGEST_PAUSE),
    }
}

impl Recovery {
    /// Checks what the peer has said against what this end knows for certain.
    pub(super) fn check(&self, message: &Message) -> Result<(), Violation> {
        let (rails, is_for) = match message {
            Message::Halt { usable, .. } | Message::Ports { usable } => (*usable, None),
            Message::Offer { rails, .. } => (*rails, Some(Role::Receiver)),
            Message::Answer { rails, .. } => (*rails, Some(Role::Sender)),
            Message::Ready { .. } => (self.all, Some(Role::Receiver)),
            Message::Ask { .. } | Message::Heard { .. } => (self.all, None),
            Message::Account { account, .. } => {
                account.check()?;
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
    pub(super) fn handle_present(&mut self, now: Time, message: Message) -> Result<(), Violation> {
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
            Message::Account { account, .. } => {
                if matches!(self.state, State::AwaitingAccount { .. }) {
                    self.arriving = account.arrived();
                    self.state = State::Resuming;
                    self.job = Some((Job::Resume(Some(account)), false));
                }
            }
        }
        Ok(())
    }

    /// What one of the ends can use may have changed.
    pub(super) fn handle_both_usable(&mut self, now: Time) {
        let before = self.history.usable();
        self.history.handle_usable(now, self.own & self.peer);
        self.has_usable_changed |= before != self.history.usable();
    }

    /// What state it is in.
    #[cfg(any(test, fuzzing))]
    pub fn state_name(&self) -> &'static str {
        self.state.name()
    }

    /// Receiver: whether recoveries are in vain is for the sender to judge, if it has begun this one. It may only try a rail again.
    pub(super) fn trust_sender(&mut self, now: Time) {
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
    pub(super) fn begin_next(&mut self, now: Time, cause: String) {
        match self.attempt.checked_add(1) {
            Some(attempt) => self.begin(now, attempt, cause),
            None => self.fail(now),
        }
    }

    /// Begins the next attempt, because a frame has not come in time.
    pub(super) fn begin_after_late(&mut self, now: Time, cause: String) {
        self.late_answers = self.late_answers.saturating_add(1);
        self.begin_next(now, cause);
        self.was_late = true;
    }

    /// Begins the next attempt, because nothing is acknowledged over the rails `dead`, or `why` else; at once, if there are others.
    pub(super) fn begin_without(&mut self, now: Time, dead: RailMask, why: Option<String>) {
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
    pub(super) fn begin(&mut self, now: Time, attempt: u32, cause: String) {
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
    pub(super) fn advance(&mut self, now: Time) {
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
    pub(super) fn waits_for_pause(&self) -> bool {
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
            self.handle_wish(now, format!("to use more rails: {found}"));
        }
    }

    /// Other queue pairs are wanted, although nothing has failed, because of `cause`. Those in use are given up only when the peer has said
    /// that it hears this end. Returns whether it is asked: not while something else is under way, and not again soon in vain.
    pub fn handle_wish(&mut self, now: Time, cause: String) -> bool {
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
    pub(super) fn begin_draining(&mut self, now: Time, cause: String) {
        (self.state, self.cause) = (State::Draining { until: now + DRAIN_TIME }, cause);
        self.due.drain = true;
    }

    /// Sender: begins that attempt, for the cause that there was.
    pub(super) fn take_in(&mut self, now: Time) {
        self.begin_next(now, self.cause.clone());
        self.advance(now);
    }

    /// The connection runs again.
    pub(super) fn run(&mut self, now: Time) {
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
    pub(super) fn say(&mut self, message: Message) {
        self.frame = Some(message);
        self.due.frame = true;
    }

    /// What the caller has to do next and report the end of.
    pub(super) fn poll_job(&mut self) -> Option<Action> {
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
            Job::Resume(account) => {
                self.queue_pairs = QueuePairs::InUse;
                Action::Resume { attempt, account: account.take() }
            }
        })
    }

    /// Ends the job that the caller has reported the end of, if it `is` that one and the caller knows of it.
    pub(super) fn take_job(&mut self, is: impl FnOnce(&Job) -> bool) -> bool {
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
    pub(super) fn answer_time(&self) -> Duration {
        match self.role {
            Role::Sender => {
                let first = ANSWER_TIME + ANSWER_TIME_OF_OTHERS.saturating_mul(self.others);
                first.saturating_mul(1 << self.late_answers.min(8)).min(LONGEST_ANSWER_TIME)
            }
            Role::Receiver => LONGEST_ANSWER_TIME,
        }
    }
}
