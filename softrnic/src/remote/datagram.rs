//! The responder of UD: what the NIC of the peer does with a datagram. What it does not take it drops, and nobody hears of it.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::abi::consts::Status;
use crate::copy::piece::{CopyError, Direction};
use crate::network::header::HEADER_BYTES;
use crate::remote::guard::RemoteQpGuard;
use crate::remote::outcome::TxOutcome;
use crate::remote::receive::Receive;
use crate::remote::request::Request;
use crate::remote::responder::{Admission, alarm_queues};
use crate::shm::recv_ring::Sender;

/// What comes with a datagram besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) qkey: u32,
    pub(crate) sender: Sender,
    /// Flags of its completion.
    pub(crate) flags: u32,
}

/// Where a datagram of `total` bytes, its network header among them, goes at the QP that was entered. `None`: it is dropped.
pub(crate) fn admit(guard: &RemoteQpGuard, request: &Request, envelope: &Envelope, total: u64) -> Option<Admission> {
    let slot = guard.slot;
    if slot.qkey.load(SeqCst) != envelope.qkey {
        guard.fabric.port(guard.device, slot.port.load(Relaxed)).qkey_violations.fetch_add(1, Relaxed);
        return None;
    }
    let receive = Receive::next(guard)?;
    let Ok(remote) = receive.scatter(guard) else {
        fail(guard, request, &receive, Status::LocProt);
        return None;
    };
    if remote.total < total {
        fail(guard, request, &receive, Status::LocLen);
        return None;
    }
    Some(Admission { direction: Direction::Out, remote, is_atomic: false, is_relaxed: false, receive: Some(receive) })
}

/// Completes what `admit` began, when the bytes have been moved or that failed.
pub(crate) fn conclude(
    guard: &RemoteQpGuard,
    request: &Request,
    (admission, envelope): (&Admission, &Envelope),
    total: u64,
    moved: Result<(), CopyError>,
) -> TxOutcome {
    let Some(receive) = &admission.receive else { return TxOutcome::Lost };
    match moved {
        Ok(()) => {
            let outcome = (total, Status::Success);
            // Where its completion queue has overrun it fails with that.
            let _ = receive.finish_datagram(guard, request, outcome, (envelope.sender, envelope.flags));
            TxOutcome::Done
        }
        Err(CopyError::LocalFault) if !guard.is_owner_dead() => TxOutcome::Failed(Status::LocProt),
        Err(CopyError::RemoteFault | CopyError::Forbidden) if !guard.is_owner_dead() => {
            fail(guard, request, receive, Status::LocProt);
            TxOutcome::Lost
        }
        Err(_) => TxOutcome::Lost,
    }
}

/// The receive completes in error, and its queue pair with it.
#[cold]
fn fail(guard: &RemoteQpGuard, request: &Request, receive: &Receive, status: Status) {
    let _ = receive.finish(guard, request, HEADER_BYTES as u64, status);
    guard.slot.fail();
    alarm_queues(guard);
}
