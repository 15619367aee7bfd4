//! What a rule does to the transmission that it applies to, and beyond it.

use std::sync::atomic::Ordering::Relaxed;

use crate::engine::fault_hook::Fault;
use crate::faults::outage;
use crate::objects::qp::Qp;
use crate::remote::completion;
use crate::remote::responder::ResponderFault;
use crate::rules::action::{Action, ActionKind};

/// Does what concerns more than the message; returns what concerns it. `path`: the one that the rule is for, if it is for one; `salt`: a
/// random number of its own.
pub(crate) fn apply((qp, path): (&Qp, Option<u32>), action: Action, salt: u64) -> Option<Fault> {
    let (fabric, port) = (qp.fabric, qp.port());
    match action.kind {
        ActionKind::Drop => return Some(Fault::Drop),
        ActionKind::DropAck => return Some(Fault::DropAck),
        ActionKind::Delay => return Some(Fault::Delay(action.value)),
        ActionKind::Late => return Some(Fault::Late(action.value)),
        ActionKind::QpError => return Some(Fault::QpError),
        ActionKind::Rnr => return Some(Fault::Responder(ResponderFault::NotReady)),
        ActionKind::Corrupt => return Some(Fault::Responder(ResponderFault::Corrupt(salt))),
        ActionKind::AccessError => return Some(Fault::Responder(ResponderFault::AccessError)),
        ActionKind::Cut => return Some(Fault::Responder(ResponderFault::Cut(action.value))),
        ActionKind::Forget => return Some(Fault::Responder(ResponderFault::Forget)),
        ActionKind::OperationError => return Some(Fault::Responder(ResponderFault::OperationError)),
        ActionKind::CqOverrun => completion::overrun(fabric, qp.send_cq.slot),
        ActionKind::PortDown => outage::begin(fabric, port, action.value, action.gids),
        ActionKind::PortUp => outage::set_port_state(fabric, port, true),
        ActionKind::Slow => {
            let port = fabric.port(port.device, port.port);
            let path = path.and_then(|path| port.paths.get(path as usize));
            path.map_or(&port.bytes_per_ms, |path| &path.bytes_per_ms).store(action.value, Relaxed);
        }
        ActionKind::DeviceFatal => outage::fail_device(fabric, port.device, action),
        // SAFETY: ends this process, as asked.
        ActionKind::Kill => unsafe {
            libc::kill(libc::getpid(), libc::SIGKILL);
        },
        ActionKind::ModifyQp | ActionKind::RegMr | ActionKind::PollCq | ActionKind::PostSend => {}
    }
    None
}
