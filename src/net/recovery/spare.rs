//! The port of another card that a connection borrows while none of its own is usable.
//!
//! A port is borrowed when no own port was usable for [`BORROW_AFTER`] and its card has registered
//! all of the connection's memory. It is borrowed at once if [`FAILED_OF_SENDER`] attempts in a row
//! have failed over active own ports. The receiver cannot tell whose port is to blame, and waits
//! for [`FAILED_OF_RECEIVER`].
//!
//! The borrowed port stands in for one rail: the peer sees that rail with another address. The
//! connection returns to an own port that has been back for a while. A port over which that many
//! attempts have failed, own or borrowed, counts as unusable for a while.

use crate::error::Error;
use crate::net::background::port_listeners::{PortEvent, PortListener};
use crate::net::device::conn_memory::ConnMemory;
use crate::net::device::nic::Nic;
use crate::net::device::open_device::OpenDevice;
use crate::net::device::rail::Rail;
use crate::net::device::spares::BorrowedPort;
use crate::proto::recovery::machine::Role;
use crate::verbs::clock;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long no own port was usable before one is borrowed.
const BORROW_AFTER: Duration = Duration::from_millis(100);
/// How long an own port must be usable again before the connection returns to it. It doubles each
/// time.
const FIRST_RETURN: Duration = Duration::from_secs(1);
const LONGEST_RETURN: Duration = Duration::from_secs(60);
/// Attempts are in a row if the connection ran for less than this between them.
const STEADY_RUN: Duration = Duration::from_secs(2);
/// A connection that has not borrowed for this long starts again with [`FIRST_RETURN`].
const STEADY_TIME: Duration = Duration::from_secs(60);
/// Failed attempts in a row over one port before another one is tried.
const FAILED_OF_SENDER: u32 = 3;
const FAILED_OF_RECEIVER: u32 = 4;
/// How long a port is not borrowed after that many failures.
const AVOIDED_AFTER_FAILURES: Duration = Duration::from_secs(1);
/// How long own ports are not used after that many failures. It is short: the fault may be the
/// peer's.
const OWN_AVOIDED: Duration = Duration::from_secs(2);
/// How long a port is not borrowed after its card has refused to register memory.
const AVOIDED_AFTER_REFUSAL: Duration = Duration::from_secs(10);

/// The borrowed port of one connection, if there is one.
#[derive(Debug)]
pub struct SparePort {
    /// Failed attempts in a row over one port before another one is tried.
    max_failed: u32,
    loan: Option<Loan>,
    /// Ports that must not be borrowed before a time.
    avoided: Vec<(Arc<Rail>, Instant)>,
    /// Since when no port was usable.
    without_since: Option<Instant>,
    /// While a port is borrowed: since when an own one is usable.
    own_since: Option<Instant>,
    /// Since when the connection has been running; `None` after an attempt.
    running_since: Option<Instant>,
    /// Whether an own port was usable at the last check.
    had_own: bool,
    /// The number of attempts in a row over own ports, the latest attempt, and until when own ports
    /// are not used.
    own_attempts: (u32, u32),
    own_avoided: Option<Instant>,
    /// How long an own port must be usable before the connection returns to it.
    return_after: Duration,
    /// When the latest loan ended.
    returned: Option<Instant>,
}

#[derive(Debug)]
struct Loan {
    /// The rail that it stands in for.
    rail: u8,
    port: BorrowedPort,
    /// The port's device, on which all memory is registered.
    device: Weak<OpenDevice>,
    /// The number of attempts in a row over it, and the latest attempt.
    attempts: (u32, u32),
    /// Whether the connection has run over it.
    has_run: bool,
    /// Receives the port's events while it is borrowed.
    _events: Arc<dyn PortListener>,
}

/// Passes the events of a borrowed port on to the connection.
#[derive(Debug)]
struct PassedOn(Weak<dyn PortListener>);

impl PortListener for PassedOn {
    fn handle_port_event(&self, port: u8, what: PortEvent) -> usize {
        self.0.upgrade().map_or(0, |listener| listener.handle_port_event(port, what))
    }
}

/// What a connection borrows a port for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The rail to stand in for.
    pub rail: u8,
    /// The connection's device.
    pub nic: &'a Nic,
    /// The connection's memory.
    pub memory: &'a ConnMemory,
    /// Receives the port's events.
    pub listener: &'a Weak<dyn PortListener>,
}

impl SparePort {
    /// No borrowed port yet, at an end with this `role`.
    pub fn new(role: Role) -> Self {
        Self {
            max_failed: if role == Role::Sender { FAILED_OF_SENDER } else { FAILED_OF_RECEIVER },
            loan: None,
            avoided: Vec::new(),
            without_since: None,
            own_since: None,
            running_since: None,
            had_own: true,
            own_attempts: (0, 0),
            own_avoided: None,
            return_after: FIRST_RETURN,
            returned: None,
        }
    }

    /// The port that stands in for rail number `rail`, if one does.
    pub fn of_rail(&self, rail: u8) -> Option<&Arc<Rail>> {
        self.loan.as_ref().filter(|loan| loan.rail == rail).map(|loan| loan.port.port())
    }

    /// Whether `port` is the borrowed one and its device has registered all memory.
    pub fn is_ready(&self, port: &Rail) -> bool {
        let device = Arc::downgrade(&port.card.device());
        self.loan.as_ref().is_none_or(|loan| Weak::ptr_eq(&loan.device, &device))
    }

    /// The rail that a port stands in for.
    pub fn rail(&self) -> Option<u8> {
        self.loan.as_ref().map(|loan| loan.rail)
    }

    /// Whether the connection should return to an own port that is usable again.
    pub fn is_over(&self) -> bool {
        self.loan.is_some()
            && self.own_since.is_some_and(|since| clock::since(since) >= self.return_after)
    }

    /// When a port may be borrowed or returned, if that is after `looked`.
    pub fn next_change(&self, looked: Instant) -> Option<Instant> {
        let give_back =
            self.own_since.filter(|_| self.loan.is_some()).map(|since| since + self.return_after);
        let borrow =
            self.without_since.filter(|_| self.loan.is_none()).map(|since| since + BORROW_AFTER);
        [give_back, borrow].into_iter().flatten().filter(|time| *time > looked).min()
    }

    /// Records whether an own port is usable now. Changes nothing that existing queue pairs depend
    /// on.
    pub fn handle_own(&mut self, has_own: bool) {
        let now = clock::now();
        if self.own_attempts.0 >= self.max_failed {
            self.own_attempts.0 = 0;
            self.own_avoided = Some(now + OWN_AVOIDED);
            self.without_since = now.checked_sub(BORROW_AFTER);
        }
        if has_own && !self.had_own {
            // An own port is back: earlier failures no longer count.
            self.own_attempts.0 = 0;
            self.own_avoided = None;
        }
        self.had_own = has_own;
        let has_own = has_own && self.own_avoided.is_none_or(|until| until <= now);
        self.own_since = if has_own { self.own_since.or(Some(now)) } else { None };
        let is_without = !has_own && self.loan.is_none();
        self.without_since = if is_without { self.without_since.or(Some(now)) } else { None };
    }

    /// Returns a borrowed port that is no longer needed, not `usable`, or over which attempts fail.
    /// There are no queue pairs.
    pub fn settle(&mut self, memory: &ConnMemory, usable: impl Fn(&Arc<Rail>) -> bool) {
        let Some(loan) = &self.loan else { return };
        let is_bad = loan.attempts.0 >= self.max_failed
            || !usable(loan.port.port())
            || !self.is_ready(loan.port.port());
        if self.own_since.is_none() && !is_bad {
            return;
        }
        let now = clock::now();
        let Some(loan) = self.loan.take() else { return };
        let port = loan.port.port();
        memory.leave(&port.card);
        if is_bad {
            self.avoided.push((Arc::clone(port), now + AVOIDED_AFTER_FAILURES));
        }
        if loan.has_run {
            let is_steady = self.returned.is_none_or(|ended| clock::since(ended) >= STEADY_TIME);
            let longer = if is_steady { FIRST_RETURN } else { self.return_after };
            self.return_after = (2 * longer).min(LONGEST_RETURN);
            self.returned = Some(now);
        }
    }

    /// Borrows a port whose card registers all memory, if it is time: first those in the peer's
    /// network, then the nearest. `is_near` returns whether a port is in that network, or `None` if
    /// it is unusable.
    pub fn borrow(&mut self, wanted: Wanted<'_>, is_near: impl Fn(&Rail) -> Option<bool>) {
        let is_due = self.without_since.is_some_and(|since| clock::since(since) >= BORROW_AFTER);
        if self.loan.is_some() || !is_due {
            return;
        }
        let now = clock::now();
        self.avoided.retain(|(_, until)| *until > now);
        let is_avoided =
            |port: &Arc<Rail>| self.avoided.iter().any(|(avoided, _)| Arc::ptr_eq(avoided, port));
        let ports = wanted.nic.spares.by_preference().into_iter().filter(|port| !is_avoided(port));
        let mut ports: Vec<_> = ports.filter_map(|port| Some((is_near(&port)?, port))).collect();
        ports.sort_by_key(|(is_near, _)| !is_near);
        for (_, port) in ports {
            match Loan::begin(&port, &wanted) {
                Ok(loan) => {
                    if self.returned.is_none_or(|ended| clock::since(ended) >= STEADY_TIME) {
                        self.return_after = FIRST_RETURN;
                    }
                    self.without_since = None;
                    self.loan = Some(loan);
                    return;
                }
                Err(e) => {
                    let text =
                        format!("{}: {} cannot be borrowed: {e}", wanted.nic.name, port.name);
                    match wanted.nic.notices.line("spare", &text) {
                        Some(line) => log::warn!("{line}"),
                        None => log::debug!("{text}"),
                    }
                    self.avoided.push((port, now + AVOIDED_AFTER_REFUSAL));
                }
            }
        }
    }

    /// Counts an attempt whose queue pairs are about to be created.
    pub fn handle_attempt(&mut self, attempt: u32) {
        let (count, latest) =
            self.loan.as_mut().map_or(&mut self.own_attempts, |loan| &mut loan.attempts);
        if self.running_since.take().is_some_and(|since| clock::since(since) >= STEADY_RUN) {
            *count = 0;
        }
        if attempt != std::mem::replace(latest, attempt) {
            *count += 1;
        }
    }

    /// Records that the connection is running.
    pub fn handle_running(&mut self) {
        self.running_since = Some(clock::now());
        self.without_since = None;
        if let Some(loan) = &mut self.loan {
            loan.has_run = true;
        }
    }
}

impl Loan {
    /// # Errors
    /// Memory cannot be registered on the port's card, or no thread can wait for its events.
    fn begin(port: &Arc<Rail>, wanted: &Wanted<'_>) -> Result<Self, Error> {
        let watcher = port.card.watcher()?;
        let device = Arc::downgrade(&wanted.memory.extend(&port.card)?);
        let events: Arc<dyn PortListener> = Arc::new(PassedOn(wanted.listener.clone()));
        watcher.listen(port.port, &events);
        let port = BorrowedPort::new(port);
        Ok(Self {
            rail: wanted.rail,
            port,
            device,
            attempts: (0, 0),
            has_run: false,
            _events: events,
        })
    }
}
