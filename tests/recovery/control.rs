//! Control connections that are lost, or slow, while the connection recovers.

use crate::common::prelude::*;
use crate::fabric::{Fabric, end, exchange_until, inject_only, recoveries, run, set_port};
use crate::stream::{LONG, SHORT, Shape, Stream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::JoinHandle;
use testkit::relay::Relay;

/// A relay before the control port of this process, served by a thread.
pub(crate) struct Relayed {
    state: Arc<Mutex<State>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    relay: Relay,
    /// All connections are reset when it has passed on so many pieces.
    reset_at: Option<usize>,
    resets: usize,
    /// Nothing is forwarded, and neither side gets an error.
    is_silent: bool,
}

/// How often a relay looks for something to pass on.
pub(crate) const AT_ONCE: Duration = Duration::from_micros(50);

impl Relayed {
    fn new(relay: Relay, every: Duration) -> Self {
        let state =
            Arc::new(Mutex::new(State { relay, reset_at: None, resets: 0, is_silent: false }));
        let is_over = Arc::new(AtomicBool::new(false));
        let (shared, over) = (Arc::clone(&state), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                shared.lock().expect("no panic").serve();
                std::thread::sleep(every);
            }
        });
        Self { state, is_over, thread: Some(thread) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    /// Resets all connections after it has passed on `pieces` more.
    pub(crate) fn reset_after(&self, pieces: usize) {
        let mut state = self.state();
        state.reset_at = Some(state.relay.passed + pieces);
    }

    /// From now on it passes nothing on, or all that it has kept.
    pub(crate) fn silence(&self, is_silent: bool) {
        self.state().is_silent = is_silent;
    }

    /// How often it has reset them.
    pub(crate) fn resets(&self) -> usize {
        self.state().resets
    }
}

impl State {
    fn serve(&mut self) {
        if self.is_silent {
            return;
        }
        self.relay.forward();
        if self.reset_at.is_some_and(|at| self.relay.passed >= at) {
            self.relay.reset();
            self.reset_at = None;
            self.resets += 1;
        }
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the relay's thread has not panicked");
        }
    }
}

/// A connection each way, each by way of the relay of its listener, which looks `every` so often
/// for something to pass on.
pub(crate) fn open_through_relays(
    worker: &mut WorkerCtx,
    every: Duration,
    shape: Shape,
) -> Result<(Stream, Relayed)> {
    let transport = plugin_transport()?;
    let device = worker.rank().min(transport.devices()? - 1);
    let (handle, mut listener) = transport.listen(device)?;
    let relay = relay_to(&handle);
    let diverted = through(&relay, &handle);
    let relayed = Relayed::new(relay, every);
    let mut theirs = Handle(worker.exchange(&diverted.0)?.try_into().expect("a whole handle"));
    let (send, recv) = connect_pair(worker, &transport, device, &mut theirs, &mut listener, || ())?;
    listener.close()?;
    Ok((Stream::over(PeerConn { send, recv }, transport, shape)?, relayed))
}

/// A port falls again and again, and each time the control connection is reset after one piece more
/// of what both ends say. With none it is reset while the connection runs.
fn all_arrives_although_control_connections_are_reset(
    fabric: Fabric,
    ports: [&str; 2],
) -> Result<()> {
    run(fabric, &[], |worker| {
        let (mut stream, relayed) = open_through_relays(worker, AT_ONCE, SHORT)?;
        stream.exchange(worker, 20)?;
        for pieces in 0..20 {
            worker.begin(format!("a recovery with a reset after {pieces} pieces"))?;
            worker.barrier()?;
            if worker.rank() == 0 {
                inject_only(&format!("port-down=10ms {} times=1", ports[pieces % 2]));
            }
            relayed.reset_after(pieces / 2);
            worker.barrier()?;
            stream.exchange(worker, 60)?;
        }
        worker.barrier()?;
        let resets = relayed.resets();
        // What both ends say may be over before the last of the pieces.
        assert!(resets >= 5, "{resets} resets");
        end(worker, stream)
    })
}

#[test]
fn all_arrives_if_the_control_connection_is_reset_at_any_step_of_a_recovery() -> Result<()> {
    all_arrives_although_control_connections_are_reset(
        Fabric::OneRail,
        ["device=softrnic0", "device=softrnic1"],
    )
}

#[test]
fn all_arrives_if_the_control_connection_is_reset_while_rails_are_replaced() -> Result<()> {
    // Any port that is in use: one that has fallen often is left out for a while, and those that
    // are left find other partners.
    all_arrives_although_control_connections_are_reset(Fabric::TwoRails, ["", ""])
}

/// Of two devices of rank 1 one fails at once. The other one refuses commands, and receives on; and
/// rank 0 learns late that the connection recovers.
#[test]
fn messages_that_are_sent_before_the_peer_is_reported_of_a_recovery_are_taken_in() -> Result<()> {
    let rules = "device-fatal=300ms refuses=200ms device=softrnic3 message=55 times=1; \
                 device-fatal=200ms device=softrnic2 message=60 times=1; delay=10ms peer=softrnic3 message=45..";
    run(Fabric::TwoRails, &[("SOFTRNIC_FAULTS", rules)], |worker| {
        let (mut stream, _relayed) = open_through_relays(worker, Duration::from_millis(20), SHORT)?;
        stream.exchange(worker, 600)?;
        end(worker, stream)
    })
}

/// How long an end tries to recover in the test below.
const GIVE_UP: Duration = Duration::from_secs(2);

/// Rank 0's rail is back, so rank 0 asks to replace queue pairs that work. No control message
/// arrives meanwhile. Messages continue over the queue pairs in use for longer than any end tries
/// to recover. When control messages arrive again, the change follows.
#[test]
fn a_rail_that_is_back_is_not_taken_in_before_the_peer_answers() -> Result<()> {
    let give_up = GIVE_UP.as_secs().to_string();
    let env = [("FERRITE_GIVE_UP", &*give_up), ("FERRITE_STALL_MS", "0")];
    run(Fabric::TwoRails, &env, |worker| {
        let (mut stream, relayed) = open_through_relays(worker, AT_ONCE, LONG)?;
        if worker.rank() == 0 {
            set_port("softrnic1/1", "down");
        }
        exchange_until(worker, &mut stream, "until both connections run on one rail", || {
            recoveries() > 1
        })?;
        worker.barrier()?;
        relayed.silence(true);
        let before = recoveries();
        worker.barrier()?;
        if worker.rank() == 0 {
            set_port("softrnic1/1", "up");
        }
        exchange_until(worker, &mut stream, "until the peer is asked", || said(&["sends Ask"]))?;
        let asked = Instant::now();
        exchange_until(worker, &mut stream, "for longer than an end recovers", || {
            asked.elapsed() > 2 * GIVE_UP
        })?;
        assert_eq!(recoveries(), before, "{}", log());
        worker.barrier()?;
        relayed.silence(false);
        exchange_until(worker, &mut stream, "until the change has come", || recoveries() > before)?;
        end(worker, stream)
    })
}
