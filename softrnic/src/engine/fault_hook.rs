//! Where faults are injected from outside. The engine asks the hook and does what it answers; it knows no rules.

use std::fmt::Debug;

use crate::network::port_id::PortId;
use crate::objects::qp::Qp;
use crate::objects::send_queue::SendQueue;
use crate::remote::responder::ResponderFault;

/// A fault of one transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It does not get to the peer.
    Drop,
    /// It is executed; its acknowledgement does not get back.
    DropAck,
    /// It is held up for so many nanoseconds.
    Delay(u64),
    /// It is taken for lost, and arrives after so many nanoseconds.
    Late(u64),
    /// The sending queue pair fails.
    QpError,
    /// It shows at the responder.
    Responder(ResponderFault),
}

/// Decides what goes wrong.
pub(crate) trait FaultHook: Debug + Send + Sync {
    /// The fault of the next transmission of the head request of `queue`, if it has one. What the fault does to ports,
    /// devices and processes is done when this returns.
    fn on_transmission(&self, qp: &Qp, queue: &mut SendQueue) -> Option<Fault>;

    /// What `ibv_modify_qp` to RTR from one port to another has to answer.
    fn on_modify_qp(&self, from: PortId, to: PortId) -> Result<(), i32>;

    /// What a registration of memory at a device has to answer.
    fn on_reg_mr(&self, device: usize) -> Result<(), i32>;

    /// What a poll of a completion queue of a device has to answer. With an errno, completions stay where they are.
    fn on_poll_cq(&self, device: usize) -> Result<(), i32>;

    /// What posting a work request to a send queue of a device has to answer. With an errno, it is not posted.
    fn on_post_send(&self, device: usize) -> Result<(), i32>;
}
