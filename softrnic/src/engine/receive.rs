//! Posting receives.

use std::sync::atomic::Ordering::SeqCst;

use crate::abi::consts::qp_state;
use crate::abi::types::Sge;
use crate::engine::flush::flush_recv;
use crate::engine::pump::flush_soon;
use crate::engine::state::Engine;
use crate::host::lock::lock;
use crate::objects::qp::Qp;

/// Posts one receive, which is the first of its call or not.
pub(crate) fn post_recv(engine: &'static Engine, qp: &Qp, wr_id: u64, sges: &[Sge], is_first: bool) -> Result<(), i32> {
    let _guard = lock(&qp.recv);
    qp.fill_recv(wr_id, sges)?;
    qp.slot.work.posted_receive(is_first);
    if qp.slot.state.load(SeqCst) == qp_state::ERR && !flush_recv(engine, qp) {
        // A peer is still in it.
        flush_soon(engine, qp);
    }
    Ok(())
}
