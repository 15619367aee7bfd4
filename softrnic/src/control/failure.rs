//! Devices that fail, and others that come in their place.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::abi::consts::{event, qp_state};
use crate::control::error::Error;
use crate::control::names::DeviceName;
use crate::control::network::Network;
use crate::host::clock::now_ns;
use crate::network::link::{STATE_ACTIVE, STATE_DOWN};
use crate::network::port_id::PortId;
use crate::process::event_log::PortEvent;
use crate::shm::layout::Table;
use crate::shm::slots::QpSlot;

/// When a device returns that has failed for good.
const NEVER: u64 = u64::MAX;

impl Network {
    /// Fails a device for good: its queue pairs go into the error state, calls answer `EIO`, peers get no answer.
    pub(crate) fn fail_device(&self, name: DeviceName) -> Result<(), Error> {
        self.fail_device_until(name, NEVER)
    }

    /// As `fail_device`, after the device has refused all commands for so long: queue pairs that exist work on meanwhile, also
    /// those that their process destroys. If `lasts` is given, the device can be opened anew so long after that. Returns when it
    /// has failed, or is back.
    pub fn fail_device_after(&self, name: DeviceName, refuses: Duration, lasts: Option<Duration>) -> Result<(), Error> {
        if !refuses.is_zero() {
            self.refuse_commands(name)?;
            std::thread::sleep(refuses);
        }
        let returns_at = lasts.map_or(NEVER, |lasts| now_ns().saturating_add(lasts.as_nanos() as u64));
        self.fail_device_until(name, returns_at)?;
        if let Some(lasts) = lasts {
            std::thread::sleep(lasts);
            // Looking at it is enough.
            self.is_absent(name.0);
        }
        Ok(())
    }

    /// Has a device refuse all commands (`EIO`) until it fails.
    pub(crate) fn refuse_commands(&self, name: DeviceName) -> Result<(), Error> {
        let devices = self.fabric.topology.devices();
        if name.0 >= devices {
            return Err(Error::NoDevice(name, devices));
        }
        let control = self.fabric.file.control();
        if !self.fabric.is_failed(name.0) {
            self.fabric.header().refusing[name.0].store(1, SeqCst);
        }
        drop(control);
        Ok(())
    }

    /// As [`Self::fail_device`], but at `returns_at` (monotonic ns) it can be opened anew; until then it is not in the
    /// list. What is open stays dead.
    pub(crate) fn fail_device_until(&self, name: DeviceName, returns_at: u64) -> Result<(), Error> {
        let device = name.0;
        let (topology, header) = (&self.fabric.topology, self.fabric.header());
        if device >= topology.devices() {
            return Err(Error::NoDevice(name, topology.devices()));
        }
        let control = self.fabric.file.control();
        if self.fabric.is_failed(device) {
            header.returns_at[device].fetch_max(returns_at, SeqCst);
            return Ok(());
        }
        header.returns_at[device].store(returns_at, SeqCst);
        header.failures[device].fetch_add(1, SeqCst);
        header.refusing[device].store(0, SeqCst);
        self.set_states(device, STATE_DOWN);
        self.fabric.note_change(&control);
        for index in self.fabric.entries(Table::Qp, device) {
            self.fail_qp(device, self.fabric.qp(device, index));
        }
        self.fabric.log_event(&control, PortEvent { kind: event::DEVICE_FATAL, port: PortId { device, port: 0 } });
        Ok(())
    }

    fn fail_qp(&self, device: usize, qp: &QpSlot) {
        let state = qp.state.fetch_update(SeqCst, SeqCst, |s| {
            let is_alive = s != qp_state::RESET && s != qp_state::ERR;
            is_alive.then_some(qp_state::ERR)
        });
        if qp.owner.load(SeqCst) == 0 || state.is_err() {
            return;
        }
        // The next poll of its CQs flushes it.
        for (cq, bit) in [(&qp.send_cq, &qp.send_bit), (&qp.recv_cq, &qp.recv_bit)] {
            self.fabric.cq(device, cq.load(SeqCst)).bell.fetch_or(1 << (bit.load(SeqCst) % 64), SeqCst);
        }
    }

    fn set_states(&self, device: usize, state: u32) {
        (1..=self.fabric.topology.ports()).for_each(|port| self.fabric.port(device, port).state.store(state, SeqCst));
    }

    /// Whether the device is not in the list: it has failed, and will be back. One whose time has come is back then.
    pub(crate) fn is_absent(&self, device: usize) -> bool {
        let returns_at = &self.fabric.header().returns_at[device];
        if !matches!(returns_at.load(SeqCst), 0 | NEVER) {
            let control = self.fabric.file.control();
            let at = returns_at.load(SeqCst);
            if at != 0 && at <= now_ns() {
                self.set_states(device, STATE_ACTIVE);
                returns_at.store(0, SeqCst);
                self.fabric.note_change(&control);
            }
        }
        !matches!(returns_at.load(SeqCst), 0 | NEVER)
    }
}
