//! Waits before a connection exists: listeners, and connections being set up.
//!
//! NCCL polls a listener continuously until it has accepted, and then closes it. If NCCL has
//! stopped polling a listener, it waits for something else first, or has abandoned the listener.
//! The report mentions that once, and not as a warning.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// NCCL has stopped polling after this time without a call.
const UNASKED: Duration = Duration::from_secs(3);
/// Shorter waits are not reported.
const SETTLED: Duration = Duration::from_secs(1);
/// Interval between checks of the cause.
const DETAIL_EVERY: Duration = Duration::from_millis(200);
/// From this age on, a wait for a peer that may only be late is a warning.
const LATE: Duration = Duration::from_secs(60);

/// The function that NCCL calls until it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetUpCall {
    /// `accept`, on a listener.
    Accept,
    /// `connect`.
    Connect,
}

/// What an end waits for, in the order of the set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitsFor {
    /// A listener: a peer that connects.
    Peer,
    /// A TCP connection to the peer's port.
    Dial,
    /// NCCL in the peer's process, which has not accepted.
    Accept,
    /// A port of this end that is not usable.
    Port,
    /// Queue pairs that cannot be connected.
    QueuePairs,
    /// A listener: the commit of a peer that has been answered.
    Commit,
}

impl WaitsFor {
    /// Whether the stage shows a fault, rather than a late peer.
    fn is_fault(self) -> bool {
        matches!(self, Self::Dial | Self::Port | Self::QueuePairs)
    }
}

/// A waiting set-up. It is reported as long as it lives.
#[derive(Debug)]
pub struct SetUpWait {
    call: SetUpCall,
    device: String,
    /// The address where it listens or connects to.
    address: SocketAddr,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stage: WaitsFor,
    since: Instant,
    /// When NCCL last called; `None` if never.
    asked: Option<Instant>,
    detailed: Instant,
    detail: Detail,
    /// Whether the report has mentioned that NCCL stopped polling.
    is_reported: bool,
    /// Whether the connection exists and NCCL has not asked for another one.
    is_over: bool,
}

/// What is known beyond the stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Detail {
    /// The peer; empty if unknown.
    pub peer: String,
    /// Why set-up keeps failing; empty if it does not.
    pub trouble: String,
}

impl SetUpWait {
    /// A new set-up on `device`.
    pub fn new(call: SetUpCall, device: &str, address: SocketAddr) -> Arc<Self> {
        let now = Instant::now();
        let stage = if call == SetUpCall::Accept { WaitsFor::Peer } else { WaitsFor::Dial };
        let state = State {
            stage,
            since: now,
            asked: (call == SetUpCall::Connect).then_some(now),
            detailed: now,
            detail: Detail::default(),
            is_reported: false,
            is_over: false,
        };
        Arc::new(Self { call, device: device.to_owned(), address, state: Mutex::new(state) })
    }

    /// Records a call of NCCL that found it waiting in `stage`. Calls `detail` at intervals.
    pub fn handle_call(&self, stage: WaitsFor, detail: impl FnOnce() -> Detail) {
        let now = Instant::now();
        let mut state = self.lock();
        state.asked = Some(now);
        let is_new = state.stage != stage || state.is_over;
        if is_new {
            (state.stage, state.since, state.is_over) = (stage, now, false);
        }
        if is_new || now >= state.detailed + DETAIL_EVERY {
            (state.detail, state.detailed) = (detail(), now);
        }
    }

    /// Records that the connection exists.
    pub fn handle_end(&self) {
        self.lock().is_over = true;
    }

    /// The state at `now`, if it has waited for long enough to be reported. Nothing is known of the
    /// time before `floor`.
    pub(super) fn state_at(&self, now: Instant, floor: Instant) -> Option<SetUp> {
        let State { stage, since, asked, detail, is_over, .. } = &*self.lock();
        let age = |from: Instant| now.saturating_duration_since(from.max(floor));
        (!is_over && age(*since) >= SETTLED).then(|| SetUp {
            call: self.call,
            device: self.device.clone(),
            address: self.address,
            stage: *stage,
            age: age(*since),
            unasked: asked.map(age),
            detail: detail.clone(),
        })
    }

    /// Whether to report that NCCL has stopped polling, which is true once.
    pub(super) fn take_reported(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_reported, true)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiting set-up at one moment.
#[derive(Debug, Clone)]
pub struct SetUp {
    /// The function that NCCL calls.
    pub call: SetUpCall,
    /// The device.
    pub device: String,
    /// The address where it listens or connects to.
    pub address: SocketAddr,
    /// What it waits for.
    pub stage: WaitsFor,
    /// How long it has waited.
    pub age: Duration,
    /// How long NCCL has not called; `None` if it has never called.
    pub unasked: Option<Duration>,
    /// Further details.
    pub detail: Detail,
}

impl SetUp {
    /// Whether NCCL is polling it.
    pub fn is_asked(&self) -> bool {
        self.unasked.is_some_and(|unasked| unasked < UNASKED)
    }

    /// Whether to warn: NCCL polls it and it shows a fault. A peer may just be late, for example
    /// while it loads a model. That is a warning after a minute, or at once if the user has set the
    /// time (`is_limit_set`).
    pub fn is_warning(&self, is_limit_set: bool) -> bool {
        self.is_asked() && (self.stage.is_fault() || is_limit_set || self.age >= LATE)
    }

    /// The sort key; the least comes first: polled by NCCL, a fault, the oldest.
    fn order(&self) -> (bool, bool, std::cmp::Reverse<Duration>) {
        (!self.is_asked(), !self.stage.is_fault(), std::cmp::Reverse(self.age))
    }
}

/// Sorts by importance.
pub(super) fn sort(set_ups: &mut [SetUp]) {
    set_ups.sort_by_key(SetUp::order);
}

/// The longest wait in `set_ups` of those that NCCL polls.
pub(super) fn longest(set_ups: &[SetUp]) -> Option<Duration> {
    set_ups.iter().filter(|one| one.is_asked()).map(|one| one.age).max()
}

/// `softrnic1: has been listening at 10.0.0.1:4711 for 10 s: no peer has connected. …`
impl fmt::Display for SetUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, device, address, stage, age, unasked, detail: Detail { peer, trouble } } =
            self;
        let (age, unasked) = (age.as_secs(), unasked.unwrap_or(*age).as_secs());
        match call {
            SetUpCall::Accept => {
                write!(f, "{device}: has been listening at {address} for {age} s: ")?
            }
            SetUpCall::Connect => {
                write!(f, "{device}: has been connecting to {address} for {age} s: ")?
            }
        }
        match stage {
            WaitsFor::Peer if !self.is_asked() => {
                return write!(
                    f,
                    "NCCL here has not called accept for {unasked} s: it waits for something else first, or has abandoned the listener"
                );
            }
            WaitsFor::Peer => write!(
                f,
                "no peer has connected. It is late or has failed, uses another network or device, or cannot reach this address \
                 (NCCL_SOCKET_IFNAME)"
            )?,
            WaitsFor::Dial => write!(
                f,
                "there is no TCP connection. Check that the peer's process runs, and that its port can be reached"
            )?,
            WaitsFor::Accept => write!(
                f,
                "the peer has not accepted: its process answers, but NCCL there has not called accept. Run `ferrite hang` there"
            )?,
            WaitsFor::Port => write!(f, "a port of this end cannot be used")?,
            WaitsFor::QueuePairs => {
                write!(f, "the queue pairs cannot be connected to those of {peer}")?
            }
            WaitsFor::Commit => {
                write!(f, "{peer} has received the reply but has not completed connect")?
            }
        }
        if !trouble.is_empty() {
            write!(f, " ({trouble})")?;
        }
        if !self.is_asked() {
            let call = if *call == SetUpCall::Accept { "accept" } else { "connect" };
            write!(f, "; NCCL here has not called {call} for {unasked} s")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn set_up(call: SetUpCall, stage: WaitsFor, age: u64, unasked: u64) -> SetUp {
        let (age, unasked) = (Duration::from_secs(age), Some(Duration::from_secs(unasked)));
        let detail = Detail { peer: "the peer".into(), trouble: "errno".into() };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 7));
        SetUp { call, device: "mlx5_0".into(), address, stage, age, unasked, detail }
    }

    #[test]
    fn a_peer_that_may_be_late_is_a_warning_after_a_minute_and_a_fault_is_one_at_once() {
        let is_warning =
            |stage, age, unasked| set_up(SetUpCall::Connect, stage, age, unasked).is_warning(false);
        for stage in [WaitsFor::Peer, WaitsFor::Accept, WaitsFor::Commit] {
            assert_eq!(
                [10, 59, 60].map(|age| is_warning(stage, age, 0)),
                [false, false, true],
                "{stage:?}"
            );
            assert!(
                set_up(SetUpCall::Connect, stage, 10, 0).is_warning(true),
                "the user has set the time"
            );
        }
        for stage in [WaitsFor::Dial, WaitsFor::Port, WaitsFor::QueuePairs] {
            assert!(is_warning(stage, 10, 0), "{stage:?}");
        }
    }

    #[test]
    fn what_nccl_does_not_ask_for_is_no_warning() {
        for stage in [WaitsFor::Peer, WaitsFor::QueuePairs] {
            let left = set_up(SetUpCall::Accept, stage, 7200, 3);
            assert!(
                !left.is_warning(true)
                    && left.to_string().contains("NCCL here has not called accept"),
                "{left}"
            );
            let never = SetUp { unasked: None, ..left };
            assert!(
                !never.is_warning(true)
                    && never.to_string().contains("has not called accept for 7200 s"),
                "{never}"
            );
        }
    }

    #[test]
    fn a_fault_that_nccl_asks_for_is_reported_first() {
        let mut all = [
            set_up(SetUpCall::Accept, WaitsFor::Port, 900, 900),
            set_up(SetUpCall::Accept, WaitsFor::Peer, 50, 0),
            set_up(SetUpCall::Connect, WaitsFor::QueuePairs, 5, 0),
            set_up(SetUpCall::Connect, WaitsFor::Accept, 60, 0),
        ];
        sort(&mut all);
        assert_eq!(
            all.map(|one| one.stage),
            [WaitsFor::QueuePairs, WaitsFor::Accept, WaitsFor::Peer, WaitsFor::Port]
        );
    }

    /// It may call in a moment.
    #[test]
    fn a_listener_is_not_asked_before_nccl_has_called_and_a_connect_is() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 7));
        let is_asked = |call| {
            let wait = SetUpWait::new(call, "mlx5_0", address);
            let start = wait.lock().since;
            wait.state_at(start + SETTLED, start).expect("it waits").is_asked()
        };
        assert_eq!([SetUpCall::Accept, SetUpCall::Connect].map(is_asked), [false, true]);
    }

    #[test]
    fn a_stage_is_as_old_as_it_is_and_nothing_is_older_than_what_is_known() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 7));
        let wait = SetUpWait::new(SetUpCall::Connect, "mlx5_0", address);
        let start = wait.lock().since;
        let after = |seconds| start + Duration::from_secs(seconds);
        let age =
            |now, floor| wait.state_at(after(now), after(floor)).map(|found| found.age.as_secs());
        assert_eq!([age(9, 0), age(9, 8), age(9, 9)], [Some(9), Some(1), None]);
        wait.handle_call(WaitsFor::Dial, Detail::default);
        assert_eq!(wait.lock().since, start, "the same stage");
        wait.handle_call(WaitsFor::Accept, || Detail { peer: "p".into(), trouble: String::new() });
        assert!(wait.lock().since > start);
        assert_eq!(wait.state_at(after(9), start).expect("it waits").detail.peer, "p");
        assert_eq!([wait.take_reported(), wait.take_reported()], [true, false]);
        wait.handle_end();
        assert!(
            wait.state_at(after(9), start).is_none(),
            "a listener that NCCL has not closed yet"
        );
        wait.handle_call(WaitsFor::Accept, Detail::default);
        assert!(wait.state_at(after(9), start).is_some(), "it is asked for another one");
    }
}
