//! The devices that a connection's rails are on: whether one is lost, and whether one that is open again knows the connection's memory.

use crate::error::Error;
use crate::net::device::conn_memory::ConnMemory;
use crate::net::device::nic::Nic;
use crate::net::device::open_device::OpenDevice;
use crate::net::qp::set::QpSet;
use crate::proto::MAX_RAILS;
use crate::proto::recovery::rail_mask::RailMask;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The devices of one connection, by rail number.
#[derive(Debug)]
pub struct ConnDevices {
    nic: Arc<Nic>,
    /// Those that the queue pairs in use are on.
    in_use: [Weak<OpenDevice>; MAX_RAILS],
    /// Those of the connection's own cards on which all of its memory is registered.
    ready: [Weak<OpenDevice>; MAX_RAILS],
    /// Why memory could not be registered on a device that is open again, and when that may be tried again.
    refused: [Option<(Error, Instant)>; MAX_RAILS],
}

/// How long after a device has refused to register memory it is asked again.
const AFTER_REFUSAL: Duration = Duration::from_secs(1);
/// How often it is looked whether a device that is lost is back.
const LOOK_EVERY: Duration = Duration::from_millis(200);

impl ConnDevices {
    /// Those of a connection of `nic` that begins on `qps`.
    pub fn of(nic: &Arc<Nic>, qps: &QpSet) -> Self {
        let mut this = Self {
            nic: Arc::clone(nic),
            in_use: Default::default(),
            ready: Default::default(),
            refused: Default::default(),
        };
        this.use_qps(qps);
        this.ready = this.in_use.clone();
        this
    }

    /// The connection uses `qps` from now on.
    pub fn use_qps(&mut self, qps: &QpSet) {
        self.in_use = Default::default();
        for (number, device) in qps.devices() {
            self.in_use[usize::from(number) % MAX_RAILS] = Arc::downgrade(device);
        }
    }

    /// Opens the connection's own cards that are lost again, if they are back, and registers its memory there.
    pub fn look(&mut self, memory: &ConnMemory) {
        for (number, rail) in self.nic.rails.iter().enumerate().take(MAX_RAILS) {
            let Ok(device) = rail.card.living_device() else { continue };
            let now_open = Arc::downgrade(&device);
            if Weak::ptr_eq(&now_open, &self.ready[number]) {
                continue;
            }
            let refused = &mut self.refused[number];
            if refused.as_ref().is_some_and(|(_, until)| Instant::now() < *until) {
                continue;
            }
            match memory.renew(&device) {
                Ok(()) => {
                    self.ready[number] = now_open;
                    *refused = None;
                }
                Err(e) => {
                    let text = format!("{}: memory is not registered again on {}: {e}", self.nic.name, rail.name);
                    match self.nic.notices.line("renew", &text) {
                        Some(line) => log::warn!("{line}"),
                        None => log::debug!("{text}"),
                    }
                    *refused = Some((e, Instant::now() + AFTER_REFUSAL));
                }
            }
        }
    }

    /// Whether all memory is registered on the device of the own port of rail number `number`.
    pub fn is_ready(&self, number: usize) -> bool {
        let device = self.nic.rails.get(number).map(|rail| rail.card.device());
        device.is_some_and(|device| Weak::ptr_eq(&Arc::downgrade(&device), &self.ready[number % MAX_RAILS]))
    }

    /// Of these rails, those whose queue pairs are on a device that is lost.
    pub fn lost(&self, rails: RailMask) -> RailMask {
        let is_lost = |number: &u8| {
            let device = self.in_use[usize::from(*number) % MAX_RAILS].upgrade();
            device.is_none_or(|device| device.is_lost())
        };
        rails.iter().filter(is_lost).fold(RailMask::NONE, |lost, number| lost | RailMask::only(number))
    }

    /// Why none of the connection's own ports can be used any more, even though all of their devices are open.
    pub fn hopeless(&self) -> Option<Error> {
        let mut refused = self.nic.rails.iter().zip(&self.refused).map(|(rail, refused)| {
            let (error, _) = refused.as_ref().filter(|(error, _)| !error.is_recoverable)?;
            Some((&rail.name, error))
        });
        let first = refused.next()??;
        refused.all(|other| other.is_some()).then(|| {
            let (name, error) = first;
            Error::system(format!(
                "{name} is back after a fatal error, but memory cannot be registered there again: {error}"
            ))
        })
    }

    /// Whether one of the connection's own cards cannot be used until it is back and knows the memory.
    pub fn is_one_away(&self) -> bool {
        (0..self.nic.rails.len().min(MAX_RAILS)).any(|number| !self.is_ready(number))
            || self.nic.cards.iter().any(|card| card.device().is_lost())
    }

    /// When it is to be looked again whether a device is back.
    pub fn next_look(&self) -> Option<Instant> {
        self.is_one_away().then(|| Instant::now() + LOOK_EVERY)
    }

    /// For messages: which of the connection's own cards are lost, since when, and why they are not open again.
    pub fn describe_losses(&self) -> String {
        let losses: Vec<_> = self.nic.cards.iter().filter_map(|card| card.loss()).collect();
        losses.join("; ")
    }
}
