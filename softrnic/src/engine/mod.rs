//! The data path: the process that posts a request also executes it, on both sides.
//!
//! `requester` works off a send queue: it gathers and checks the local side, decides when a request
//! reaches the peer, and hands it to `remote`; `datagrams` does so for those of UD. What has to wait
//! is left in the queue with a time, for the next poll or the service thread. `receive` has receives
//! and polls, `modify` the calls that change or end a queue pair. A `FaultHook` around the engine
//! may decide that a transmission or a call goes wrong.

pub(crate) mod datagrams;
pub(crate) mod modify;
pub(crate) mod receive;
pub(crate) mod requester;

use std::fmt::Debug;
use std::sync::{Arc, Mutex, Weak};

use crate::abi::types::Sge;
use crate::copy::transfer::Pieces;
use crate::network::topology::PortId;
use crate::objects::context::Context;
use crate::objects::cq::Cq;
use crate::objects::qp::Qp;
use crate::objects::send_queue::SendQueue;
use crate::objects::srq::Srq;
use crate::process::fabric::Fabric;
use crate::remote::responder::{Forbidden, ResponderFault, resolve};
use crate::remote::staged_transfer::CopyServer;

/// The engine of this process. Lives until the process ends.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) fabric: &'static Fabric,
    pub(crate) faults: Box<dyn FaultHook>,
    pub(crate) qps: Mutex<Vec<Arc<Qp>>>,
    pub(crate) cqs: Mutex<Vec<Arc<Cq>>>,
    pub(crate) srqs: Mutex<Vec<Arc<Srq>>>,
    /// Open devices.
    pub(crate) contexts: Mutex<Vec<Weak<Context>>>,
    /// Queue pairs whose head request is copied through the shared file.
    pub(crate) staging: Mutex<Vec<Arc<Qp>>>,
    pub(crate) copy_server: CopyServer,
}

impl Engine {
    /// An engine without objects.
    pub(crate) fn new(fabric: &'static Fabric, faults: Box<dyn FaultHook>) -> Self {
        Self {
            fabric,
            faults,
            qps: Mutex::default(),
            cqs: Mutex::default(),
            srqs: Mutex::default(),
            contexts: Mutex::default(),
            staging: Mutex::default(),
            copy_server: CopyServer::default(),
        }
    }
}

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
    /// The fault of the next transmission of the head request of `queue`, if it has one. What the
    /// fault does to ports, devices and processes is done when this returns.
    fn on_transmission(&self, qp: &Qp, queue: &mut SendQueue) -> Option<Fault>;

    /// What `ibv_modify_qp` to RTR from one port to another has to answer.
    fn on_modify_qp(&self, from: PortId, to: PortId) -> Result<(), i32>;

    /// What a registration of memory at a device has to answer.
    fn on_reg_mr(&self, device: usize) -> Result<(), i32>;

    /// What a poll of a completion queue of a device has to answer. With an errno, completions stay
    /// where they are.
    fn on_poll_cq(&self, device: usize) -> Result<(), i32>;

    /// What posting a work request to a send queue of a device has to answer. With an errno, it is
    /// not posted.
    fn on_post_send(&self, device: usize) -> Result<(), i32>;
}

/// The opcode of an operation that fails when it is executed.
pub(crate) const FAILS: u32 = 0x100;

/// The local ranges of a request, each allowed by its key.
#[inline]
pub(crate) fn gather(qp: &Qp, sges: &[Sge], need: u32) -> Result<Pieces, Forbidden> {
    let mut pieces = Pieces::default();
    for sge in sges.iter().filter(|s| s.length != 0) {
        let range = (sge.addr, u64::from(sge.length));
        let memory = resolve(qp.fabric, (qp.device, qp.pd.id), sge.lkey, range, need)?;
        pieces.push(memory.piece(sge.lkey, range.1));
    }
    Ok(pieces)
}

/// Whether nothing completes any more, since its device has failed.
pub(crate) fn is_silent(qp: &Qp) -> bool {
    qp.fabric.settings.silent_failure && qp.pd.context.is_dead()
}
