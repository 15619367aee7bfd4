//! The devices that a connection's queue pairs use. Watchers read them at any time, when a device
//! is lost.

use crate::net::device::open_device::OpenDevice;
use crate::net::qp::set::QpSet;
use crate::proto::MAX_RAILS;
use crate::proto::recovery::rail_mask::RailMask;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The devices by rail number; none while the connection has no queue pairs.
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
