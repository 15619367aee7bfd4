//! Objects that go: each waits for those who still use it.

use std::sync::atomic::Ordering::SeqCst;

use crate::abi::consts::qp_state;
use crate::engine::poll::forget;
use crate::engine::state::Engine;
use crate::host::lock::lock;
use crate::objects::cq::Cq;
use crate::objects::mr::{Change, Mr};
use crate::objects::qp::Qp;
use crate::objects::srq::Srq;
use crate::shm::slots::NO_PEER;

impl Engine {
    /// Invalidates the keys, then waits for every access that began before.
    pub(crate) fn deregister(&'static self, mr: Mr) {
        self.invalidate(&mr);
        mr.release();
    }

    /// Changes a region when every access that began before is over. Its keys stay as they are.
    pub(crate) fn reregister(&'static self, mr: &mut Mr, change: Change) -> Result<(), i32> {
        let next = mr.check_change(&change)?;
        self.invalidate(mr);
        mr.change(change, next);
        Ok(())
    }

    /// Invalidates the keys, then waits for every access that began before.
    fn invalidate(&'static self, mr: &Mr) {
        mr.invalidate();
        let domain = mr.pd().id;
        let uses = |qp: &Qp| qp.pd.id == domain || qp.srq.as_ref().is_some_and(|srq| srq.pd.id == domain);
        let users: Vec<_> = lock(&self.qps).iter().filter(|qp| uses(qp)).cloned().collect();
        for qp in users {
            // Our own threads read and write it under this lock, peers while they are in the queue pair.
            // What is copied through the shared file is sent again from the beginning, and finds the key invalid.
            lock(&qp.send).staged.take_if(|staged| staged.uses(mr.key()));
            self.fabric.await_remote(qp.slot);
        }
        if self.fabric.has_stage() {
            self.copy_server.quiesce(self.fabric);
        }
    }

    /// Forgets all requests and completions of a queue pair. The state is RESET already.
    pub(crate) fn discard(&'static self, qp: &Qp) {
        lock(&qp.send).staged = None;
        self.fabric.await_remote(qp.slot);
        if self.fabric.has_stage() {
            // What peers have asked us to copy for this queue pair.
            self.copy_server.quiesce(self.fabric);
        }
        qp.discard();
    }

    /// Takes a queue pair out of the fabric: for its peer it vanishes.
    pub(crate) fn destroy_qp(&'static self, qp: &Qp) {
        qp.slot.state.store(qp_state::RESET, SeqCst);
        qp.slot.peer.store(NO_PEER, SeqCst);
        self.discard(qp);
        qp.leave_cqs();
        forget(self, qp);
        lock(&self.qps).retain(|known| !std::ptr::eq(&raw const **known, qp));
        qp.release();
    }

    /// Takes a shared receive queue out of the fabric, which has no queue pairs.
    pub(crate) fn destroy_srq(&self, srq: &Srq) {
        lock(&self.srqs).retain(|known| !std::ptr::eq(&raw const **known, srq));
        srq.destroy();
    }

    /// Takes a completion queue out of the fabric; EBUSY while it has queue pairs.
    pub(crate) fn destroy_cq(&self, cq: &Cq) -> Result<(), i32> {
        if cq.is_in_use() {
            return Err(libc::EBUSY);
        }
        lock(&self.cqs).retain(|known| !std::ptr::eq(&raw const **known, cq));
        cq.destroy();
        Ok(())
    }
}
