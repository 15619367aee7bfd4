//! The peer of one established connection: its name, and whether it is alive.
//!
//! Losing the control connection proves nothing about the peer, since data takes another path. The
//! end that dialled dials again, and the other one asks it to ([`crate::proto::control::redial`]).
//! Both probe from time to time whether the peer's device still acknowledges
//! ([`crate::net::data::health::Probe`]). They do so more often when the peer is suspected to be
//! dead.

use crate::net::control::observers::{
    Full, InquiryEvents, InquirySlot, PeerObserver, RecoveryEvents, RecoverySlot,
};
use crate::net::control::stream::PeerStream;
use crate::net::data::state_word::StateWord;
use crate::net::peer::name::PeerName;
use crate::net::peer::recovery_progress::RecoveryProgress;
use crate::proto::control::event::PeerChange;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The state of a connection: what is known of the peer, and whether the connection recovers. The
/// former values are ordered; a later one overrides an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State(u8);

impl State {
    /// The peer is alive and connected.
    const OPEN: Self = Self(0);
    /// The control connection is lost, and whether the peer is alive is unknown at present.
    const LOST: Self = Self(1);
    /// The peer no longer knows the connection, and whether everything was done is unknown. Its
    /// device may still acknowledge what is in flight.
    const UNKNOWN: Self = Self(2);
    /// The peer has closed, as an end does when everything is done. Its device may still
    /// acknowledge what is in flight.
    const CLOSED: Self = Self(3);
    /// The peer has died or failed, or the device is lost. What is in flight cannot complete.
    const BROKEN: Self = Self(4);
    /// A flag beside these values: the queue pairs are being replaced.
    const RECOVERING: u8 = 8;

    /// Whether the peer is alive and connected, and the connection is not recovering.
    #[inline]
    pub fn is_open(self) -> bool {
        self == Self::OPEN
    }

    /// Whether the peer has closed, died or failed, or the device is lost: nothing new can
    /// complete.
    #[inline]
    pub fn is_gone(self) -> bool {
        self.of_peer() >= Self::UNKNOWN.0
    }

    /// Whether the peer has closed in good order.
    pub fn has_closed(self) -> bool {
        self.of_peer() == Self::CLOSED.0
    }

    /// Whether the peer has died or failed, or the device is lost.
    #[inline]
    pub fn is_broken(self) -> bool {
        self.of_peer() == Self::BROKEN.0
    }

    /// Whether the control connection is lost, and nothing else is known of the peer.
    #[inline]
    pub fn is_lost(self) -> bool {
        self.of_peer() == Self::LOST.0
    }

    /// Whether the queue pairs are being replaced.
    #[inline]
    pub fn is_recovering(self) -> bool {
        self.0 & Self::RECOVERING != 0
    }

    fn of_peer(self) -> u8 {
        self.0 & !Self::RECOVERING
    }
}

/// The control side of a connection. The [driver](crate::net::control::driver) updates it; the data
/// path reads one word.
#[derive(Debug)]
pub struct PeerState {
    peer: PeerName,
    state: Arc<StateWord>,
    /// Why the connection cannot continue, or that the control connection is lost; empty while all
    /// is well.
    reason: Mutex<String>,
    /// Whether the queue pairs in use have failed. Changed while the reason is locked.
    has_fault: AtomicBool,
    /// Whether the peer is suspected to be dead, while the control connection is lost.
    is_doubted: AtomicBool,
    recovery: RecoverySlot,
    /// The progress of a long recovery.
    progress: Mutex<Option<RecoveryProgress>>,
    inquiry: InquirySlot,
    stream: Box<dyn PeerStream>,
}

impl PeerState {
    /// The state of the peer called `peer`, at the other end of `stream`. Handles earlier events at
    /// once. With `failover` both ends recover the connection; without it a frame of recovery is an
    /// error.
    pub fn new(peer: PeerName, stream: impl PeerStream + 'static, failover: bool) -> Arc<Self> {
        let this = Arc::new(Self {
            peer,
            state: Arc::default(),
            reason: Mutex::default(),
            has_fault: AtomicBool::new(false),
            is_doubted: AtomicBool::new(false),
            recovery: RecoverySlot::new(failover),
            progress: Mutex::default(),
            inquiry: InquirySlot::default(),
            stream: Box::new(stream),
        });
        let observer: Arc<dyn PeerObserver> = Arc::clone(&this) as _;
        this.stream.establish(&observer, failover);
        this
    }

    /// Passes the peer's frames of recovery and changes of its state to `handler` from now on,
    /// first the earlier ones.
    pub fn on_recovery_events(&self, handler: Weak<dyn RecoveryEvents>) {
        self.recovery.open(handler);
    }

    /// Passes the peer's questions and answers about waits to `handler` from now on, with the
    /// number `end`.
    pub fn on_inquiries(&self, end: u64, handler: Weak<dyn InquiryEvents>) {
        self.inquiry.open(end, handler);
    }

    /// Whether the connection recovers from a device failure. A connection that was just set up
    /// does so once it starts.
    pub fn is_recoverable(&self) -> bool {
        self.recovery.is_heard()
    }

    /// Records that the queue pairs are being replaced, or no longer; a fault keeps them
    /// recovering. Returns the earlier value.
    pub fn set_recovering(&self, recovers: bool) -> bool {
        let _reason = self.lock();
        self.change_recovering(recovers || self.has_fault())
    }

    /// Records that the queue pairs in use have failed. The connection recovers until others
    /// replace them, whatever else this end hears meanwhile. Returns the earlier value.
    pub fn handle_fault(&self) -> bool {
        let _reason = self.lock();
        self.change_recovering(true);
        self.has_fault.swap(true, Ordering::AcqRel)
    }

    /// Records that other queue pairs are in use.
    pub fn handle_new_queue_pairs(&self) {
        let _reason = self.lock();
        self.has_fault.store(false, Ordering::Release);
    }

    /// Whether the queue pairs in use have failed.
    pub fn has_fault(&self) -> bool {
        self.has_fault.load(Ordering::Acquire)
    }

    /// Changes the flag under the lock.
    fn change_recovering(&self, recovers: bool) -> bool {
        let (bit, before) = (if recovers { State::RECOVERING } else { 0 }, self.state());
        self.state.set_peer(before.of_peer() | bit);
        before.is_recovering()
    }

    /// Publishes the progress of the recovery; `None` if there is none or it has just begun.
    pub fn set_progress(&self, progress: Option<RecoveryProgress>) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// The progress of a long recovery.
    pub fn progress(&self) -> Option<RecoveryProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the queue pairs are being replaced.
    #[inline]
    pub fn is_recovering(&self) -> bool {
        self.state().is_recovering()
    }

    /// The peer's device, host, process, address, and rank if known.
    pub fn peer(&self) -> &PeerName {
        &self.peer
    }

    /// The word that the data path reads: clear only while the state is open.
    pub fn word(&self) -> &Arc<StateWord> {
        &self.state
    }

    /// The state of the connection.
    #[inline]
    pub fn state(&self) -> State {
        // Stores before a change of state are visible to a thread that reads the state, so the
        // reason is there.
        State(self.state.peer())
    }

    /// Whether the peer has closed, died or failed, or the device is lost: nothing new can
    /// complete.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.state().is_gone()
    }

    /// Whether what is in flight cannot complete either.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.state().is_broken()
    }

    /// Whether the control connection is lost, and nothing else is known.
    pub fn is_lost(&self) -> bool {
        self.state().is_lost()
    }

    /// Whether the peer is suspected to be dead, so that its device must be probed often.
    pub fn is_doubted(&self) -> bool {
        self.is_doubted.load(Ordering::Relaxed) && self.is_lost()
    }

    /// Records that the peer's device has acknowledged or sent something. Call it while the state
    /// is not open.
    pub fn handle_acknowledged(&self) {
        if self.is_doubted() {
            self.stream.handle_acknowledged();
        }
    }

    /// The reason of the state; empty while all is well.
    pub fn reason(&self) -> String {
        self.lock().clone()
    }

    /// The stream that carries the peer's frames.
    pub fn stream(&self) -> &dyn PeerStream {
        self.stream.as_ref()
    }

    /// Ends the connection from this end for `reason`, which is also sent to the peer.
    pub fn fail(&self, reason: &str) {
        self.end(State::BROKEN, reason);
        self.stream.fail(reason);
    }

    /// Handles that a completion queue or a device of the queue pairs has failed for `reason`.
    /// Returns whether the connection recovers.
    pub fn handle_queue_failure(&self, reason: &str) -> bool {
        self.recovery.handle_fault(reason)
    }

    /// Handles that the device has failed for `reason` without recovery, like [`Self::fail`].
    pub fn handle_device_failure(&self, reason: &str) {
        self.fail(reason);
        let _ = self.recovery.push(PeerChange::Broken(reason.to_owned()));
    }

    fn end(&self, state: State, reason: &str) {
        let mut text = self.lock();
        let now = self.state();
        if state.0 <= now.of_peer() {
            return;
        }
        if !now.is_gone() {
            reason.clone_into(&mut text);
        }
        self.set_of_peer(state);
    }

    /// Changes the state of the peer, under the lock.
    fn set_of_peer(&self, state: State) {
        let recovering = self.state().0 & State::RECOVERING;
        self.state.set_peer(state.0 | recovering);
    }

    /// Handles that the control connection is back.
    fn handle_back(&self) {
        let mut text = self.lock();
        self.is_doubted.store(false, Ordering::Relaxed);
        if self.is_lost() {
            text.clear();
            self.set_of_peer(State::OPEN);
        }
    }

    fn lock(&self) -> MutexGuard<'_, String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeerObserver for PeerState {
    fn handle_change(&self, change: PeerChange) -> Option<Arc<dyn RecoveryEvents>> {
        match &change {
            PeerChange::Frame(_) => {}
            PeerChange::Inquiry(frame) => {
                self.inquiry.hand_over(frame);
                return None;
            }
            PeerChange::Lost(why) => self.end(State::LOST, why),
            PeerChange::Doubted => self.is_doubted.store(true, Ordering::Relaxed),
            PeerChange::Back => self.handle_back(),
            PeerChange::Unknown(why) => self.end(State::UNKNOWN, why),
            PeerChange::Closed(why) => self.end(State::CLOSED, why),
            PeerChange::Broken(why) => self.end(State::BROKEN, why),
        }
        match self.recovery.push(change) {
            Ok(handler) => handler,
            Err(Full) => {
                self.end(State::BROKEN, "the peer sent too many control messages");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::control::driver::ControlDriver;
    use crate::net::control::stream::ControlStream;
    use crate::proto::frame::{Frame, Kind};
    use std::net::SocketAddr;
    use std::time::Duration;

    /// The state of a peer that is never reached.
    fn peer(failover: bool) -> Arc<PeerState> {
        let driver = ControlDriver::new(Duration::from_secs(20), None).expect("descriptors");
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let stream =
            ControlStream::open(&driver, address, [1; 16], [2; 16]).expect("this is no child");
        PeerState::new("the peer".into(), stream, failover)
    }

    fn halt(number: u8) -> PeerChange {
        PeerChange::Frame(Frame { kind: Kind::Halt, secret: [2; 16], body: vec![number] })
    }

    fn lost() -> PeerChange {
        PeerChange::Lost("a test".into())
    }

    /// The state that an end sees: open, recovering, lost, gone, broken.
    fn seen(peer: &PeerState) -> [bool; 5] {
        [
            peer.state().is_open(),
            peer.is_recovering(),
            peer.is_lost(),
            peer.is_gone(),
            peer.is_broken(),
        ]
    }

    #[test]
    fn whether_it_recovers_and_what_is_known_of_the_peer_are_changed_apart() {
        let (closed, broken) =
            (PeerChange::Closed("bye".into()), PeerChange::Broken("dead".into()));
        let steps = [
            (lost(), [true, false, false]),
            (PeerChange::Back, [false; 3]),
            (halt(0), [false; 3]),
            (closed, [false, true, false]),
            (lost(), [false, true, false]),
            (broken, [false, true, true]),
            (PeerChange::Back, [false, true, true]),
        ];
        let peer = peer(true);
        assert_eq!(seen(&peer), [true, false, false, false, false]);
        for (change, [is_lost, is_gone, is_broken]) in steps {
            let text = format!("{change:?}");
            peer.set_recovering(true);
            let _ = peer.handle_change(change);
            assert_eq!(seen(&peer), [false, true, is_lost, is_gone, is_broken], "{text}");
            peer.set_recovering(false);
            assert_eq!(
                seen(&peer),
                [!is_lost && !is_gone, false, is_lost, is_gone, is_broken],
                "{text}"
            );
        }
        assert_eq!(peer.reason(), "bye", "the first end counts");
    }

    /// They may fail while outstanding messages complete, just before the connection resumes over
    /// them, or while messages are resent.
    #[test]
    fn a_connection_whose_queue_pairs_have_failed_recovers_until_there_are_others() {
        let peer = peer(true);
        peer.set_recovering(true);
        assert!(!peer.handle_fault());
        peer.set_recovering(false);
        assert!(peer.is_recovering() && peer.has_fault(), "the end of something else");
        assert!(peer.handle_fault(), "one fault is told once");
        peer.handle_new_queue_pairs();
        assert!(peer.is_recovering(), "messages are to be sent again");
        peer.set_recovering(false);
        assert!(peer.state().is_open() && !peer.has_fault());
    }

    #[test]
    fn a_peer_that_does_not_know_the_connection_is_gone_and_has_not_closed_in_good_order() {
        for (change, has_closed) in
            [(PeerChange::Unknown("who?".into()), false), (PeerChange::Closed("bye".into()), true)]
        {
            let peer = peer(true);
            peer.set_recovering(true);
            let _ = peer.handle_change(change);
            let state = peer.state();
            assert_eq!(
                (state.is_gone(), state.is_broken(), state.has_closed()),
                (true, false, has_closed)
            );
        }
    }

    #[test]
    fn a_peer_is_doubted_only_while_its_control_connection_is_lost() {
        let peer = peer(true);
        let steps = [
            (PeerChange::Doubted, false),
            (lost(), true),
            (PeerChange::Back, false),
            (lost(), false),
        ];
        for (change, is_doubted) in steps {
            let text = format!("{change:?}");
            let _ = peer.handle_change(change);
            assert_eq!(peer.is_doubted(), is_doubted, "{text}");
        }
    }

    #[derive(Debug, Default)]
    struct Noting(Mutex<Vec<PeerChange>>, Mutex<Vec<String>>);

    impl RecoveryEvents for Noting {
        fn handle_fault(&self, reason: &str) {
            self.1.lock().expect("one thread").push(reason.to_owned());
        }

        fn handle_frame(&self, frame: Frame) {
            self.0.lock().expect("one thread").push(PeerChange::Frame(frame));
        }
        fn handle_change(&self, change: &PeerChange) {
            self.0.lock().expect("one thread").push(change.clone());
        }
    }

    #[test]
    fn what_came_before_somebody_recovers_the_connection_is_handed_over_first_and_in_order() {
        let (peer, noting) = (peer(true), Arc::new(Noting::default()));
        let all = [halt(0), lost(), PeerChange::Back, halt(1), halt(2)];
        all[..3].iter().for_each(|change| drop(peer.handle_change(change.clone())));
        let handler: Arc<dyn RecoveryEvents> = Arc::clone(&noting) as _;
        assert!(peer.is_recoverable(), "it will be");
        assert!(peer.handle_queue_failure("a queue"), "it is kept");
        peer.on_recovery_events(Arc::downgrade(&handler));
        assert!(peer.is_recoverable());
        for change in &all[3..] {
            assert!(
                peer.handle_change(change.clone()).is_some(),
                "the handler is not dropped here"
            );
        }
        assert_eq!(*noting.0.lock().expect("one thread"), all);
        assert_eq!(*noting.1.lock().expect("one thread"), ["a queue"]);
        drop((handler, noting));
        assert!(!peer.is_recoverable() && peer.handle_change(halt(3)).is_none());
    }

    #[test]
    fn a_peer_that_says_too_much_before_anybody_hears_it_is_broken() {
        let peer = peer(true);
        (0..64).for_each(|n| drop(peer.handle_change(halt(n))));
        assert!(peer.state().is_open());
        let _ = peer.handle_change(halt(64));
        assert!(
            peer.is_broken() && peer.reason().contains("too many control messages"),
            "{}",
            peer.reason()
        );
    }

    #[test]
    fn without_failover_a_control_connection_may_be_lost_and_come_back_any_number_of_times() {
        let peer = peer(false);
        assert!(!peer.is_recoverable() && !peer.handle_queue_failure("a queue"));
        for _ in 0..1000 {
            let _ = (peer.handle_change(lost()), peer.handle_change(PeerChange::Back));
            assert!(peer.state().is_open(), "{}", peer.reason());
        }
    }
}
