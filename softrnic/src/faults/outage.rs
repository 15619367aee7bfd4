//! Ports that a rule takes down, and devices that it fails, which come back by themselves.

use crate::control::addresses::TakenGid;
use crate::control::names::{DeviceName, PortName};
use crate::control::network::Network;
use crate::host::clock::now_ns;
use crate::network::port_id::PortId;
use crate::process::fabric::Fabric;
use crate::process::timers::Task;
use crate::rules::action::Action;
use crate::rules::gid_return::GidReturn;

/// What is left to be done.
#[derive(Debug)]
struct Outage {
    fabric: &'static Fabric,
    port: PortName,
    gids: GidReturn,
    taken: Vec<TakenGid>,
    is_over: bool,
}

/// Takes a port down for `lasts` nanoseconds; 0: for good. By `gids` it loses its addresses meanwhile.
pub(crate) fn begin(fabric: &'static Fabric, port: PortId, lasts: u64, gids: GidReturn) {
    set_port_state(fabric, port, false);
    let port = PortName { device: port.device, port: port.port };
    let taken = if gids.is_untouched() { Vec::new() } else { Network::of(fabric).take_gids(port) };
    if lasts != 0 {
        fabric.arm(now_ns() + lasts, Box::new(Outage { fabric, port, gids, taken, is_over: false }));
    }
}

/// A queue pair uses the port, so it exists. Of a device that has failed meanwhile it stays down.
pub(crate) fn set_port_state(fabric: &'static Fabric, PortId { device, port }: PortId, is_active: bool) {
    let _ = Network::of(fabric).set_port_state(PortName { device, port }, is_active);
}

/// Has a device fail as `action` says, which is one that does that.
pub(crate) fn fail_device(fabric: &'static Fabric, device: usize, action: Action) {
    if action.refuses == 0 {
        return fail_device_now(fabric, device, action.value);
    }
    if Network::of(fabric).refuse_commands(DeviceName(device)).is_ok() {
        fabric.arm(now_ns() + action.refuses, Box::new(DeviceFailure { fabric, device, lasts: action.value }));
    }
}

/// Has a device fail for `lasts` nanoseconds; 0: for good.
fn fail_device_now(fabric: &'static Fabric, device: usize, lasts: u64) {
    let name = DeviceName(device);
    if lasts == 0 {
        return drop(Network::of(fabric).fail_device(name));
    }
    let at = now_ns() + lasts;
    if Network::of(fabric).fail_device_until(name, at).is_ok() {
        fabric.arm(at, Box::new(DeviceReturn { fabric, device }));
    }
}

/// A device that has refused commands fails.
#[derive(Debug)]
struct DeviceFailure {
    fabric: &'static Fabric,
    device: usize,
    lasts: u64,
}

impl Task for DeviceFailure {
    fn run(self: Box<Self>) {
        fail_device_now(self.fabric, self.device, self.lasts);
    }
}

/// A device that has failed is back.
#[derive(Debug)]
struct DeviceReturn {
    fabric: &'static Fabric,
    device: usize,
}

impl Task for DeviceReturn {
    fn run(self: Box<Self>) {
        // Looking at it is enough.
        let _ = Network::of(self.fabric).is_absent(self.device);
    }
}

impl Outage {
    fn return_gids(&self) {
        Network::of(self.fabric).return_gids(self.port, &self.taken, self.gids.change);
    }
}

impl Task for Outage {
    fn run(mut self: Box<Self>) {
        let (fabric, PortName { device, port }) = (self.fabric, self.port);
        if self.is_over {
            return self.return_gids();
        }
        if self.gids.after == 0 {
            self.return_gids();
        }
        set_port_state(fabric, PortId { device, port }, true);
        if self.gids.after != 0 {
            self.is_over = true;
            fabric.arm(now_ns() + self.gids.after, self);
        }
    }
}
