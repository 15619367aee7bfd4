//! The port of another card that a connection uses while none of its own can be used.
//!
//! A port is borrowed when no own one could be used for [`BORROW_AFTER`], and its card has registered all of the connection's memory;
//! at once, if [`FAILED_OF_SENDER`] attempts in a row have failed over own ports that are active; the receiver, which does not know either
//! whose port is to blame, waits for [`FAILED_OF_RECEIVER`]. It stands in for one rail: the peer sees
//! that rail with another address. When an own port is back for a while, the connection goes back to it. A port over which so many
//! attempts have failed is taken for one that cannot be used, for a while: an own one, or one that is borrowed.

use crate::error::Error;
use crate::net::background::port_listeners::{PortEvent, PortListener};
use crate::net::device::conn_memory::ConnMemory;
use crate::net::device::nic::Nic;
use crate::net::device::open_device::OpenDevice;
use crate::net::device::rail::Rail;
use crate::net::device::spares::BorrowedPort;
use crate::proto::recovery::machine::Role;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long no own port could be used before one is borrowed.
const BORROW_AFTER: Duration = Duration::from_millis(100);
/// How long an own port has to be usable again before the connection goes back to it. Each time it is twice as long.
const FIRST_RETURN: Duration = Duration::from_secs(1);
const LONGEST_RETURN: Duration = Duration::from_secs(60);
/// Attempts are in a row as long as the connection has run for less than this between them.
const STEADY_RUN: Duration = Duration::from_secs(2);
/// A connection that has not borrowed for so long goes back as soon as the first time.
const STEADY_TIME: Duration = Duration::from_secs(60);
/// Attempts in a row that fail over one port before another one is tried.
const FAILED_OF_SENDER: u32 = 3;
const FAILED_OF_RECEIVER: u32 = 4;
/// How long a port is not borrowed after so many have failed.
const AVOIDED_AFTER_FAILURES: Duration = Duration::from_secs(1);
/// How long own ports are not used after so many have failed. It is short: the fault may be the peer's.
const OWN_AVOIDED: Duration = Duration::from_secs(2);
/// How long a port is not borrowed after its card has refused to register memory.
const AVOIDED_AFTER_REFUSAL: Duration = Duration::from_secs(10);

/// The borrowed port of one connection, if there is one.
#[derive(Debug)]
pub struct SparePort {
    /// Attempts in a row that fail over one port before another one is tried.
    max_failed: u32,
    loan: Option<Loan>,
    /// Ports that are not borrowed before a time.
    avoided: Vec<(Arc<Rail>, Instant)>,
    /// Since when no port could be used.
    without_since: Option<Instant>,
    /// While a port is borrowed: since when an own one can be used.
    own_since: Option<Instant>,
    /// Since when the connection has been running; `None`: there was an attempt since.
    running_since: Option<Instant>,
    /// Whether an own port could be used at the last look.
    had_own: bool,
    /// Attempts in a row over own ports, the latest of them, and until when own ports are not used.
    own_attempts: (u32, u32),
    own_avoided: Option<Instant>,
    /// How long that has to be before the connection goes back.
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
    /// Attempts in a row over it, and the latest of them.
    attempts: (u32, u32),
    /// Whether the connection has run over it.
    has_run: bool,
    /// Told of the port's events, as long as it is borrowed.
    _events: Arc<dyn PortListener>,
}

/// Transient on what happens to a borrowed port.
#[derive(Debug)]
struct PassedOn(Weak<dyn PortListener>);

impl PortListener for PassedOn {
    fn handle_port_event(&self, port: u8, what: PortEvent) -> usize {
        self.0.upgrade().map_or(0, |listener| listener.handle_port_event(port, what))
    }
}

/// What a connection wants to borrow a port for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The rail that it is to stand in for.
    pub rail: u8,
    /// The connection's device.
    pub nic: &'a Nic,
    /// The connection's memory.
    pub memory: &'a ConnMemory,
    /// Told of the port's events.
    pub listener: &'a Weak<dyn PortListener>,
}

impl SparePort {
    /// None yet, of an end with this `role`.
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

    /// Whether all memory is registered on the device of `port`, if that is the one that is borrowed.
    pub fn is_ready(&self, port: &Rail) -> bool {
        let device = Arc::downgrade(&port.card.device());
        self.loan.as_ref().is_none_or(|loan| Weak::ptr_eq(&loan.device, &device))
    }

    /// The rail that a port stands in for.
    pub fn rail(&self) -> Option<u8> {
        self.loan.as_ref().map(|loan| loan.rail)
    }

    /// Whether the connection ought to go back to an own port, which can be used again.
    pub fn is_over(&self) -> bool {
        self.loan.is_some() && self.own_since.is_some_and(|since| since.elapsed() >= self.return_after)
    }

    /// When a port may be borrowed, or given back.
    pub fn next_change(&self) -> Option<Instant> {
        let give_back = self.own_since.filter(|_| self.loan.is_some()).map(|since| since + self.return_after);
        let borrow = self.without_since.filter(|_| self.loan.is_none()).map(|since| since + BORROW_AFTER);
        let now = Instant::now();
        [give_back, borrow].into_iter().flatten().filter(|time| *time > now).min()
    }

    /// An own port can be used now, or none (`has_own`). While queue pairs exist, nothing changes that they depend on.
    pub fn handle_own(&mut self, has_own: bool) {
        let now = Instant::now();
        if self.own_attempts.0 >= self.max_failed {
            self.own_attempts.0 = 0;
            self.own_avoided = Some(now + OWN_AVOIDED);
            self.without_since = now.checked_sub(BORROW_AFTER);
        }
        if has_own && !self.had_own {
            // It is back: what has failed before does not count.
            self.own_attempts.0 = 0;
            self.own_avoided = None;
        }
        self.had_own = has_own;
        let has_own = has_own && self.own_avoided.is_none_or(|until| until <= now);
        self.own_since = if has_own { self.own_since.or(Some(now)) } else { None };
        let is_without = !has_own && self.loan.is_none();
        self.without_since = if is_without { self.without_since.or(Some(now)) } else { None };
    }

    /// There are no queue pairs: gives a port back that is not needed any more, that is not `usable`, or over which attempts fail.
    pub fn settle(&mut self, memory: &ConnMemory, usable: impl Fn(&Arc<Rail>) -> bool) {
        let Some(loan) = &self.loan else { return };
        let is_bad =
            loan.attempts.0 >= self.max_failed || !usable(loan.port.port()) || !self.is_ready(loan.port.port());
        if self.own_since.is_none() && !is_bad {
            return;
        }
        let now = Instant::now();
        let Some(loan) = self.loan.take() else { return };
        let port = loan.port.port();
        memory.leave(&port.card);
        if is_bad {
            self.avoided.push((Arc::clone(port), now + AVOIDED_AFTER_FAILURES));
        }
        if loan.has_run {
            let is_steady = self.returned.is_none_or(|ended| ended.elapsed() >= STEADY_TIME);
            let longer = if is_steady { FIRST_RETURN } else { self.return_after };
            self.return_after = (2 * longer).min(LONGEST_RETURN);
            self.returned = Some(now);
        }
    }

    /// Borrows a port whose card registers all memory, if it is time for that: first those that are in the peer's network, then the
    /// nearest. `is_near` tells whether a port is in that network; `None`: it cannot be used.
    pub fn borrow(&mut self, wanted: Wanted<'_>, is_near: impl Fn(&Rail) -> Option<bool>) {
        let is_due = self.without_since.is_some_and(|since| since.elapsed() >= BORROW_AFTER);
        if self.loan.is_some() || !is_due {
            return;
        }
        let now = Instant::now();
        self.avoided.retain(|(_, until)| *until > now);
        let is_avoided = |port: &Arc<Rail>| self.avoided.iter().any(|(avoided, _)| Arc::ptr_eq(avoided, port));
        let ports = wanted.nic.spares.by_preference().into_iter().filter(|port| !is_avoided(port));
        let mut ports: Vec<_> = ports.filter_map(|port| Some((is_near(&port)?, port))).collect();
        ports.sort_by_key(|(is_near, _)| !is_near);
        for (_, port) in ports {
            match Loan::begin(&port, &wanted) {
                Ok(loan) => {
                    if self.returned.is_none_or(|ended| ended.elapsed() >= STEADY_TIME) {
                        self.return_after = FIRST_RETURN;
                    }
                    self.without_since = None;
                    self.loan = Some(loan);
                    return;
                }
                Err(e) => {
                    let text = format!("{}: {} cannot be borrowed: {e}", wanted.nic.name, port.name);
                    match wanted.nic.notices.line("spare", &text) {
                        Some(line) => log::warn!("{line}"),
                        None => log::debug!("{text}"),
                    }
                    self.avoided.push((port, now + AVOIDED_AFTER_REFUSAL));
                }
            }
        }
    }

    /// Queue pairs of `attempt` are about to be made.
    pub fn handle_attempt(&mut self, attempt: u32) {
        let (count, latest) = self.loan.as_mut().map_or(&mut self.own_attempts, |loan| &mut loan.attempts);
        if self.running_since.take().is_some_and(|since| since.elapsed() >= STEADY_RUN) {
            *count = 0;
        }
        if attempt != std::mem::replace(latest, attempt) {
            *count += 1;
        }
    }

    /// The connection runs.
    pub fn handle_running(&mut self) {
        self.running_since = Some(Instant::now());
        self.without_since = None;
        if let Some(loan) = &mut self.loan {
            loan.has_run = true;
        }
    }
}

impl Loan {
    /// # Errors
    /// Memory cannot be registered on the port's card, or nobody can wait for its events.
    fn begin(port: &Arc<Rail>, wanted: &Wanted<'_>) -> Result<Self, Error> {
        let watcher = port.card.watcher()?;
        let device = Arc::downgrade(&wanted.memory.extend(&port.card)?);
        let events: Arc<dyn PortListener> = Arc::new(PassedOn(wanted.listener.clone()));
        watcher.listen(port.port, &events);
        let port = BorrowedPort::new(port);
        Ok(Self { rail: wanted.rail, port, device, attempts: (0, 0), has_run: false, _events: events })
    }
}
