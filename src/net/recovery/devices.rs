//! The devices of a connection's own cards: whether one is lost, and whether a reopened one knows
//! the connection's memory.

use crate::error::Error;
use crate::net::device::conn_memory::ConnMemory;
use crate::net::device::nic::Nic;
use crate::net::device::open_device::OpenDevice;
use crate::net::qp::set::QpSet;
use crate::proto::MAX_RAILS;
use crate::proto::recovery::rail_mask::RailMask;
use crate::verbs::clock;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The devices of one connection.
#[derive(Debug)]
pub struct ConnDevices {
    nic: Arc<Nic>,
    /// The devices that the present queue pairs use.
    pub(super) in_use: Arc<DevicesInUse>,
    /// By own port: the device on which all of the connection's memory is registered.
    ready: [Weak<OpenDevice>; MAX_RAILS],
    /// By own port: why memory cannot be registered on a lost or reopened device, and when to try
    /// again. An unrecoverable error stays while the memory is registered.
    refused: [Option<(Error, Instant)>; MAX_RAILS],
}

/// Delay before memory registration is retried on a device that refused it.
const AFTER_REFUSAL: Duration = Duration::from_secs(1);
/// How often to check whether a lost device is back.
const LOOK_EVERY: Duration = Duration::from_millis(200);

impl ConnDevices {
    /// The devices of a connection of `nic` that begins on `qps`.
    pub fn of(nic: &Arc<Nic>, qps: &QpSet) -> Self {
        let in_use = DevicesInUse::of(qps);
        let mut ready: [Weak<OpenDevice>; MAX_RAILS] = Default::default();
        // There is no memory yet: everything registered later is registered on all of them.
        for (device, port) in ready.iter_mut().zip(&nic.ports) {
            *device = Arc::downgrade(&port.card.device());
        }
        Self { nic: Arc::clone(nic), in_use: Arc::new(in_use), ready, refused: Default::default() }
    }

    /// Reopens the connection's lost cards that are back, and registers its memory there.
    pub fn reopen_lost(&mut self, memory: &ConnMemory) {
        for place in 0..self.nic.ports.len().min(MAX_RAILS) {
            let Ok(device) = self.nic.ports[place].card.living_device() else {
                // Memory that cannot be registered again is known before the device is back.
                self.record_refusal(place, memory.require_renewable().err());
                continue;
            };
            let now_open = Arc::downgrade(&device);
            let is_too_early = |(_, until): &(Error, Instant)| clock::now() < *until;
            if Weak::ptr_eq(&now_open, &self.ready[place])
                || self.refused[place].as_ref().is_some_and(is_too_early)
            {
                continue;
            }
            let refused = memory.renew(&device).err();
            if refused.is_none() {
                self.ready[place] = now_open;
            }
            self.record_refusal(place, refused);
        }
    }

    /// Records whether memory registration on the device of port `place` was `refused`. Logs each
    /// reason once.
    fn record_refusal(&mut self, place: usize, refused: Option<Error>) {
        let text = |e: &Error| {
            let (nic, port) = (&self.nic.name, &self.nic.ports[place].name);
            format!("{nic}: cannot register memory again on {port}: {e}")
        };
        let known = self.refused[place].as_ref().map(|(e, _)| text(e));
        if let Some(text) = refused.as_ref().map(text).filter(|text| known.as_ref() != Some(text)) {
            match self.nic.notices.line("renew", &text) {
                Some(line) => log::warn!("{line}"),
                None => log::debug!("{text}"),
            }
        }
        self.refused[place] = refused.map(|e| (e, clock::now() + AFTER_REFUSAL));
    }

    /// Whether all memory is registered on the device of own port `place`.
    pub fn is_ready(&self, place: usize) -> bool {
        let device = self.nic.ports.get(place).map(|port| port.card.device());
        device.is_some_and(|device| {
            Weak::ptr_eq(&Arc::downgrade(&device), &self.ready[place % MAX_RAILS])
        })
    }

    /// Why no own port of the connection can ever be used again.
    pub fn permanent_loss(&self) -> Option<Error> {
        let mut refused = self.nic.ports.iter().zip(&self.refused).map(|(port, refused)| {
            let (error, _) = refused.as_ref().filter(|(error, _)| !error.is_recoverable)?;
            Some((&port.name, error))
        });
        let first = refused.next()??;
        refused.all(|other| other.is_some()).then(|| {
            let (name, error) = first;
            Error::system(format!(
                "{name} was lost by a fatal error, and memory cannot be registered there again: {error}"
            ))
        })
    }

    /// Whether an own card is unusable until it is back and knows the memory. A card that can never
    /// be used again does not count.
    pub fn is_one_away(&self) -> bool {
        let is_waited_for = |place: usize| {
            let is_lost_for_good =
                self.refused[place].as_ref().is_some_and(|(error, _)| !error.is_recoverable);
            let is_lost = || self.nic.ports[place].card.device().is_lost();
            !is_lost_for_good && (!self.is_ready(place) || is_lost())
        };
        (0..self.nic.ports.len().min(MAX_RAILS)).any(is_waited_for)
    }

    /// When to check next whether a device is back.
    pub fn next_look(&self) -> Option<Instant> {
        self.is_one_away().then(|| clock::now() + LOOK_EVERY)
    }

    /// For messages: which own cards are lost, since when, and why they are not open again.
    pub fn describe_losses(&self) -> String {
        let losses: Vec<_> = self.nic.cards.iter().filter_map(|card| card.loss()).collect();
        losses.join("; ")
    }
}

/// The devices that a connection's queue pairs use, by rail number; none while the connection has
/// no queue pairs.
#[derive(Debug)]
pub(super) struct DevicesInUse(Mutex<[Weak<OpenDevice>; MAX_RAILS]>);

impl DevicesInUse {
    /// The devices of `qps`.
    pub(super) fn of(qps: &QpSet) -> Self {
        let this = Self(Mutex::default());
        this.use_qps(qps);
        this
    }

    /// Records that the connection uses `qps` from now on.
    pub(super) fn use_qps(&self, qps: &QpSet) {
        let mut devices = self.lock();
        *devices = Default::default();
        for (number, device) in qps.devices() {
            devices[usize::from(number) % MAX_RAILS] = Arc::downgrade(device);
        }
    }

    /// Records that the connection has no queue pairs.
    pub(super) fn clear(&self) {
        *self.lock() = Default::default();
    }

    /// The devices by rail number.
    pub(super) fn all(&self) -> [Weak<OpenDevice>; MAX_RAILS] {
        self.lock().clone()
    }

    /// The subset of these rails that have no queue pairs, or have them on a lost device.
    pub(super) fn lost(&self, rails: RailMask) -> RailMask {
        let devices = self.lock();
        let is_lost = |number: &u8| {
            let device = devices[usize::from(*number) % MAX_RAILS].upgrade();
            device.is_none_or(|device| device.is_lost())
        };
        rails
            .iter()
            .filter(is_lost)
            .fold(RailMask::NONE, |lost, number| lost | RailMask::only(number))
    }

    /// The name of a lost device, if any.
    pub(super) fn lost_name(&self) -> Option<String> {
        let devices = self.all();
        let mut devices = devices.iter().filter_map(Weak::upgrade);
        devices.find(|device| device.is_lost()).map(|device| device.context.name().to_owned())
    }

    fn lock(&self) -> MutexGuard<'_, [Weak<OpenDevice>; MAX_RAILS]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
