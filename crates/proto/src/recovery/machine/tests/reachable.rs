//! Which event comes in which state of a machine, and why the others cannot.

use super::*;
use crate::random::Random;
use crate::sample::endpoint;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;

const MACHINE: Machine = Machine {
    rows: &[
        ("sender", "Running"),
        ("sender", "Draining"),
        ("sender", "Halted"),
        ("sender", "Creating"),
        ("sender", "Offered"),
        ("sender", "Connecting"),
        ("sender", "AwaitingMissingList"),
        ("sender", "Resuming"),
        ("sender", "Failed"),
        ("receiver", "Running"),
        ("receiver", "Halted"),
        ("receiver", "Connecting"),
        ("receiver", "Answered"),
        ("receiver", "Resuming"),
        ("receiver", "Failed"),
    ],
    events: &[
        "Halt", "Ports", "Offer", "Answer", "Ready", "Ask", "Heard", "MissingList", "lost", "back",
        "fault", "unreported", "usable", "timeout", "request", "fenced", "created", "connected",
        "unreachable", "resumed", "acknowledged", "drained",
    ],
    impossible,
};

const ROLE: &str = "It is said to the other end, or asked of it.";
const ORDER: &str =
    "Frames come in the order of their sending, and the one that led to this state was sent later.";
const JOB: &str =
    "It reports the end of a job that the machine starts in another state, and waits for there.";
const TEST: &str =
    "The sender tests its queue pairs when they are connected, the receiver before it continues.";
const LOOK: &str =
    "A receiver checks that its attempt is still the current one right before it continues.";
const WAITS: &str = "A receiver checks for it only while it waits for the sender's fence.";
const AFTER: &str = "It is said right after `resumed`.";

fn impossible(end: &str, state: &str, event: &str) -> Option<&'static str> {
    let is_sender = end == "sender";
    let unless = |states: &[&str], why| (!states.contains(&state)).then_some(why);
    let if_any = |states: &[&str], why| states.contains(&state).then_some(why);
    match event {
        "Offer" | "Ready" | "unreported" if is_sender => Some(ROLE),
        "Answer" | "MissingList" | "lost" | "created" | "drained" if !is_sender => Some(ROLE),
        "Answer" => if_any(&["Running", "Draining", "Creating", "Resuming"], ORDER),
        "MissingList" => if_any(&["Creating", "Offered", "Connecting"], ORDER),
        "Ports" if is_sender => {
            if_any(&["Creating", "Offered", "Connecting", "AwaitingMissingList"], ORDER)
        }
        "Ports" => if_any(&["Connecting", "Answered", "Resuming"], ORDER),
        "unreported" => unless(&["Halted"], WAITS),
        "Ask" => {
            if_any(&["Creating", "Offered", "Connecting", "AwaitingMissingList", "Answered"], ORDER)
                .or_else(|| if_any(&["Resuming"], ORDER).filter(|_| !is_sender))
        }
        "Heard" => unless(&["Running", "Draining", "Halted", "Failed"], ORDER),
        "Offer" => if_any(&["Running", "Resuming"], ORDER),
        "Ready" => if_any(&["Connecting"], ORDER),
        "fenced" => unless(&["Halted", "Failed"], JOB),
        "created" => unless(&["Creating", "Halted", "Failed"], JOB),
        "connected" => unless(&["Connecting", "Halted", "Failed"], JOB),
        "drained" => unless(&["Draining", "Halted", "Failed"], JOB),
        "unreachable" => match (is_sender, state) {
            (true, "Resuming") | (false, "Connecting") => Some(TEST),
            _ => unless(&["Connecting", "Resuming", "Halted", "Failed"], JOB),
        },
        "resumed" | "acknowledged" if !is_sender && ["Halted", "Failed"].contains(&state) => {
            Some(LOOK)
        }
        "resumed" => unless(&["Resuming", "Halted", "Failed"], JOB),
        "acknowledged" => unless(&["Running", "Halted", "Failed"], AFTER),
        _ => None,
    }
}

/// How often each event has come in each state: by end, state and event.
type Visits = BTreeMap<(&'static str, &'static str, &'static str), u64>;

/// The states and events that schedules have to visit.
struct Machine {
    /// Each end with each of its states.
    rows: &'static [(&'static str, &'static str)],
    events: &'static [&'static str],
    /// Why that event cannot come in that state of that end, if it cannot.
    impossible: fn(&str, &str, &str) -> Option<&'static str>,
}

impl Machine {
    /// The events that came although they cannot, and those that did not come although they can.
    fn differences(&self, visits: &Visits) -> Vec<String> {
        let is_known = |(end, state, event): &(&str, &str, &str)| {
            self.rows.contains(&(end, state)) && self.events.contains(event)
        };
        let unknown = visits
            .keys()
            .filter(|visit| !is_known(visit))
            .map(|visit| format!("{visit:?} is not in the table"));
        let all = self
            .rows
            .iter()
            .flat_map(|(end, state)| self.events.iter().map(move |event| (*end, *state, *event)));
        let wrong = all.filter_map(|visit @ (end, state, event)| {
            match ((self.impossible)(end, state, event), visits.contains_key(&visit)) {
                (None, false) => Some(format!("{visit:?} can come, and has not")),
                (Some(why), true) => Some(format!("{visit:?} has come, and cannot: {why}")),
                _ => None,
            }
        });
        unknown.chain(wrong).collect()
    }

    /// Checks that all has come that can, and nothing else.
    fn check(&self, visits: &Visits) {
        assert_eq!(self.differences(visits), Vec::<String>::new());
    }
}

#[test]
fn a_cell_that_can_be_reached_and_is_not_is_reported_and_one_that_cannot_and_is() {
    let machine = Machine {
        rows: &[("end", "A"), ("end", "B")],
        events: &["one", "two"],
        impossible: |_, state, event| (state == "B" && event == "two").then_some("it never does"),
    };
    let visits = Visits::from([
        (("end", "A", "one"), 1),
        (("end", "B", "two"), 1),
        (("end", "C", "two"), 1),
    ]);
    let told = machine.differences(&visits).join("\n");
    for part in [
        "\"C\", \"two\") is not in the table", "\"A\", \"two\") can come, and has not",
        "\"B\", \"one\") can come",
    ] {
        assert!(told.contains(part), "{told}");
    }
    assert!(told.contains("\"B\", \"two\") has come, and cannot: it never does"), "{told}");
    assert!(!told.contains("\"A\", \"one\")"), "{told}");
}

thread_local! {
    static VISITS: RefCell<Visits> = const { RefCell::new(Visits::new()) };
}

/// The recovery. What changes nothing is its own.
#[derive(Debug)]
struct Observed {
    machine: Recovery,
    end: &'static str,
}

impl Deref for Observed {
    type Target = Recovery;

    fn deref(&self) -> &Recovery {
        &self.machine
    }
}

impl Observed {
    fn new(role: Role, rails: RailMask, give_up: Duration) -> Self {
        let end = match role {
            Role::Sender => "sender",
            Role::Receiver => "receiver",
        };
        Self { machine: Recovery::new(role, rails, give_up), end }
    }

    fn note(&mut self, event: &'static str) -> &mut Recovery {
        let visit = (self.end, self.machine.state_name(), event);
        VISITS.with_borrow_mut(|visits| *visits.entry(visit).or_default() += 1);
        &mut self.machine
    }

    fn handle_fault(&mut self, now: Time, cause: &str) {
        self.note("fault").handle_fault(now, cause);
    }

    fn handle_message(&mut self, now: Time, message: Message) -> Result<(), Violation> {
        let event = match &message {
            Message::Halt { .. } => "Halt",
            Message::Ports { .. } => "Ports",
            Message::Offer { .. } => "Offer",
            Message::Answer { .. } => "Answer",
            Message::Ready { .. } => "Ready",
            Message::Ask { .. } => "Ask",
            Message::Heard { .. } => "Heard",
            Message::MissingList { .. } => "MissingList",
        };
        self.note(event).handle_message(now, message)
    }

    fn handle_back(&mut self, now: Time) {
        self.note("back").handle_back(now);
    }

    fn handle_lost(&mut self, now: Time) {
        self.note("lost").handle_lost(now);
    }

    fn handle_unreported(&mut self, now: Time) {
        self.note("unreported").handle_unreported(now);
    }

    fn handle_usable(&mut self, now: Time, usable: RailMask) {
        self.note("usable").handle_usable(now, usable);
    }

    fn handle_fenced(&mut self, now: Time) {
        self.note("fenced").handle_fenced(now);
    }

    fn handle_created(&mut self, now: Time, attempt: u32, end: Result<Endpoint, String>) {
        self.note("created").handle_created(now, attempt, end);
    }

    fn handle_connected(&mut self, now: Time, attempt: u32, end: Result<Endpoint, String>) {
        self.note("connected").handle_connected(now, attempt, end);
    }

    fn handle_unreachable(&mut self, now: Time, attempt: u32, dead: RailMask) {
        self.note("unreachable").handle_unreachable(now, attempt, dead);
    }

    fn handle_resumed(&mut self, now: Time, attempt: u32, missing_list: Option<MissingList>) {
        self.note("resumed").handle_resumed(now, attempt, missing_list);
    }

    fn handle_drained(&mut self, now: Time) {
        self.note("drained").handle_drained(now);
    }

    fn handle_timeout(&mut self, now: Time) {
        self.note("timeout").handle_timeout(now);
    }

    fn handle_change_request(&mut self, now: Time) -> bool {
        self.note("request").handle_change_request(now, "a request".into())
    }

    fn handle_acknowledged(&mut self) {
        self.note("acknowledged").handle_acknowledged();
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.machine.poll_action()
    }
}

/// Two machines in random schedules: the jobs of their callers succeed or fail, and take time.
/// There is no data, and so no queue pair.
struct Walk {
    random: Random,
    now: Time,
    machines: [Observed; 2],
    jobs: [Option<Action>; 2],
    frames: [VecDeque<Message>; 2],
    usable: [RailMask; 2],
    is_connected: bool,
    has_back: [bool; 2],
    is_draining: bool,
    attempts: [u32; 2],
    /// In about how many turns a job ends.
    job_turns: u64,
    /// Whether there are few faults, so that more comes of requests.
    is_calm: bool,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let give_up = [Duration::from_millis(40), Duration::from_secs(120)][random.index(2)];
        let job_turns = [1, 8, 60][random.index(3)];
        let is_calm = random.one_in(2);
        let rails = RailMask::first(2);
        Self {
            random,
            now: SECOND,
            machines: [Role::Sender, Role::Receiver]
                .map(|role| Observed::new(role, rails, give_up)),
            jobs: [None, None],
            frames: Default::default(),
            usable: [rails; 2],
            is_connected: true,
            has_back: [false; 2],
            is_draining: false,
            attempts: [0; 2],
            job_turns,
            is_calm,
        }
    }

    fn step(&mut self) {
        let i = self.random.index(2);
        self.now += Duration::from_micros(self.random.below(200));
        let now = self.now;
        match self.random.below(64) {
            0..=2 if self.is_calm && !self.random.one_in(30) => {
                let _ = self.machines[i].handle_change_request(now);
            }
            0 => self.machines[i].handle_fault(now, "a fault"),
            1 | 63 => {
                let _ = self.machines[i].handle_change_request(now);
            }
            2 => {
                self.usable[i] = RailMask(self.random.below(4) as u8);
                self.machines[i].handle_usable(now, self.usable[i]);
            }
            3 | 4 => {
                self.usable[i] = RailMask::first(2);
                self.machines[i].handle_usable(now, self.usable[i]);
            }
            5 if self.is_calm || self.random.one_in(2) => {
                self.is_connected = false;
                self.frames.iter_mut().for_each(VecDeque::clear);
            }
            6 | 7 if !self.is_connected => (self.is_connected, self.has_back) = (true, [true; 2]),
            8 if !self.is_connected => self.machines[0].handle_lost(now),
            9 if self.machines[1].waits_for_fence() => self.machines[1].handle_unreported(now),
            10 if self.is_draining
                && Recovery::clone(&self.machines[0]).poll_action().is_none() =>
            {
                self.machines[0].handle_drained(now);
            }
            11 => self.machines[i].handle_timeout(now),
            12 if self.random.one_in(4) => {
                let timeouts = self.machines.iter().filter_map(|machine| machine.poll_timeout());
                self.now = timeouts.min().map_or(now, |timeout| timeout.max(now));
            }
            13..=30 => self.hear(i),
            31..=40 if self.random.one_in(self.job_turns) => self.finish(i),
            _ if std::mem::take(&mut self.has_back[i]) => self.machines[i].handle_back(now),
            _ => self.act(i),
        }
        let attempts = self.machines.each_ref().map(|machine| machine.attempt());
        let [before, after] = [self.attempts, attempts];
        assert!(after[0] >= before[0] && after[1] >= before[1], "an attempt goes back");
        assert!(after[0].abs_diff(after[1]) <= 1, "an end is two attempts ahead: {after:?}");
        self.attempts = attempts;
    }

    fn hear(&mut self, i: usize) {
        let Some(message) = self.frames[i].pop_front() else { return };
        self.machines[i].handle_message(self.now, message).expect("what a Ferrite says");
    }

    fn act(&mut self, i: usize) {
        if self.jobs[i].is_some() {
            return;
        }
        match self.machines[i].poll_action() {
            None | Some(Action::Discard | Action::Recovered { .. } | Action::Fail(_)) => {}
            Some(Action::Send(message)) if self.is_connected => {
                self.frames[1 - i].push_back(message);
            }
            Some(Action::Send(_)) => {}
            Some(Action::Drain) => self.is_draining = true,
            Some(Action::Continue) => self.is_draining = false,
            Some(job) => self.jobs[i] = Some(job),
        }
    }

    /// A job ends.
    fn finish(&mut self, i: usize) {
        let Some(job) = self.jobs[i].take() else { return };
        let (now, machine) = (self.now, &mut self.machines[i]);
        let refused = |random: &mut Random| random.one_in(8).then(|| "the device refuses".into());
        let made = |random: &mut Random, rails: RailMask| match refused(random) {
            Some(why) => Err(why),
            None => Ok(endpoint(rails.count().into(), 1, false)),
        };
        let dead = [RailMask::NONE, RailMask::only(0)][self.random.index(2)];
        let is_unreachable = self.random.one_in(6);
        match job {
            Action::Fence => {
                self.is_draining &= i != 0;
                machine.handle_fenced(now);
            }
            Action::Create { attempt, rails } => {
                machine.handle_created(now, attempt, made(&mut self.random, rails));
            }
            Action::Connect { attempt, .. } if i == 0 && is_unreachable => {
                machine.handle_unreachable(now, attempt, dead);
            }
            Action::Connect { attempt, rails, .. } => {
                machine.handle_connected(now, attempt, made(&mut self.random, rails));
            }
            Action::Resume { attempt, .. } if i == 1 => {
                if is_unreachable || !machine.is_resuming(attempt) {
                    return machine.handle_unreachable(now, attempt, dead);
                }
                let next = 1 + self.random.below(4) as u32;
                let missing_list = MissingList { oldest: 1, next, missing: Vec::new() };
                machine.handle_resumed(now, attempt, Some(missing_list));
                machine.handle_acknowledged();
            }
            Action::Resume { attempt, .. } => {
                machine.handle_resumed(now, attempt, None);
                if self.random.one_in(2) {
                    machine.handle_acknowledged();
                }
            }
            other => panic!("{other:?} is no job"),
        }
    }
}

/// Events that are rare in walks: an end that has failed receives the peer's usable rails and an
/// acknowledgement. Neither has an effect.
fn tell_one_that_has_failed(role: Role) {
    let rails = RailMask::first(2);
    let mut machine = Observed::new(role, rails, Duration::ZERO);
    machine.handle_fault(Time::ZERO, "a fault");
    for message in [Message::Ports { usable: rails }, Message::Heard { attempt: 1, number: 1 }] {
        machine.handle_message(Time::ZERO, message).expect("what a Ferrite says");
    }
    assert_eq!(machine.poll_action(), Some(Action::Fence));
    if role == Role::Sender {
        // Until the fence has ended.
        machine.handle_drained(Time::ZERO);
    }
    assert!(matches!(machine.poll_action(), Some(Action::Fail(_))));
    assert_eq!(machine.poll_action(), None);
}

/// The simulator of recovery, in the plugin, has the machine within what it drives. So it does not
/// see which event comes in which state.
#[test]
fn each_event_comes_in_each_state_in_which_it_can() {
    VISITS.take();
    for seed in 0..6000 {
        let mut walk = Walk::new(seed);
        (0..1000).for_each(|_| walk.step());
    }
    [Role::Sender, Role::Receiver].into_iter().for_each(tell_one_that_has_failed);
    MACHINE.check(&VISITS.take());
}
