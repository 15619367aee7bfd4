//! What a rule that strikes does.

use std::sync::atomic::Ordering::Relaxed;

use super::rule::Action;
use crate::control::{DeviceName, Network, PortName};
use crate::cq;
use crate::fabric::Fabric;
use crate::qp::Qp;
use crate::route::Place;
use crate::timers::{Task, now_ns};

/// What a fault does to the transmission that it struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: what it does concerns port, device or queue.
    None,
    Drop,
    DropAck,
    /// For so many ns.
    Delay(u64),
    Late(u64),
    QpError,
    /// It shows at the responder.
    Twist(Twist),
}

/// A fault at the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twist {
    NotReady,
    AccessError,
    OperationError,
    /// In byte n, counted round; bit n of it modulo 8.
    Corrupt(u64),
}

/// Does what concerns more than the message; returns what concerns it. `salt`: a random number of its own.
pub(super) fn apply(qp: &Qp, action: Action, salt: u64) -> Effect {
    let (fabric, Place { device, port }) = (qp.fabric, qp.place());
    match action {
        Action::Drop => return Effect::Drop,
        Action::DropAck => return Effect::DropAck,
        Action::Delay(ns) => return Effect::Delay(ns),
        Action::Late(ns) => return Effect::Late(ns),
        Action::QpError => return Effect::QpError,
        Action::Rnr => return Effect::Twist(Twist::NotReady),
        Action::Corrupt => return Effect::Twist(Twist::Corrupt(salt)),
        Action::AccessError => return Effect::Twist(Twist::AccessError),
        Action::OperationError => return Effect::Twist(Twist::OperationError),
        Action::CqOverrun => cq::overrun(fabric, qp.send_cq.slot),
        Action::PortDown(ns) => {
            // What the port's name could be wrong about it is not: a queue pair uses it.
            let _ = Network::of(fabric).set_port_state(PortName { device, port }, false);
            if ns != 0 {
                fabric.timers.arm(fabric, now_ns() + ns, Task::PortUp(device, port));
            }
        }
        Action::PortUp => raise_port(fabric, device, port),
        Action::Slow(pace) => fabric.port(device, port).bytes_per_ms.store(pace, Relaxed),
        Action::DeviceFatal => drop(Network::of(fabric).fail_device(DeviceName(device))),
        // SAFETY: ends this process, as asked.
        Action::Kill => unsafe {
            libc::kill(libc::getpid(), libc::SIGKILL);
        },
        Action::ModifyQp(_) | Action::RegMr(_) => {}
    }
    Effect::None
}

/// A port that a rule took down comes up.
pub(crate) fn raise_port(fabric: &'static Fabric, device: usize, port: u32) {
    // A device that has failed meanwhile stays down.
    let _ = Network::of(fabric).set_port_state(PortName { device, port }, true);
}
