//! The receives of a queue pair that fails.

use std::sync::atomic::Ordering::SeqCst;

use crate::abi::consts::qp_state;
use crate::engine::state::Engine;
use crate::objects::qp::Qp;

/// In the error state: completes the posted receives as flushed. False while a peer is still in the queue pair. Call with
/// `recv` locked.
pub(crate) fn flush_recv(engine: &Engine, qp: &Qp) -> bool {
    // It may have been reset or destroyed since the caller looked.
    if qp.slot.state.load(SeqCst) != qp_state::ERR || !qp.is_in_fabric() || is_silent(qp) {
        return true;
    }
    if engine.fabric.is_entered(qp.slot) || (engine.fabric.has_stage() && engine.copy_server.is_busy()) {
        return false;
    }
    qp.flush_recv();
    true
}

/// Whether nothing completes any more, since its device has failed.
pub(crate) fn is_silent(qp: &Qp) -> bool {
    qp.fabric.settings.silent_failure && qp.pd.context.is_dead()
}
