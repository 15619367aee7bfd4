//! `ibv_modify_qp`: what a transition of a queue pair does.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::types::{QpAttr, SrqAttr, qp_attr as mask, qp_state as state, qp_state};
use crate::engine::Engine;
use crate::engine::receive::{Source, forget};
use crate::engine::requester::{drain, flush, flush_soon, pump};
use crate::host::lock;
use crate::network::topology::mtu_bytes;
use crate::objects::context::{Context, Device, Ops, Pd};
use crate::objects::cq::{Cq, CqRequest};
use crate::objects::mr::{Change, Mr, Range};
use crate::objects::qp::{Qp, QpRequest, attributes, check_values, remember};
use crate::objects::srq::Srq;
use crate::process::fabric::Route;
use crate::rules::KnownRules;
use crate::shm::slots::NO_PEER;

/// `ibv_modify_qp`.
pub(crate) fn modify(
    engine: &'static Engine,
    qp: &Qp,
    attr: &QpAttr,
    given: i32,
) -> Result<(), i32> {
    let mut known = lock(&qp.attributes);
    let from = qp.slot.state.load(SeqCst);
    let to = if given & mask::STATE != 0 { attr.qp_state } else { from };
    if qp.pd.context.is_dead() && !matches!(to, state::RESET | state::ERR) {
        return Err(libc::EIO);
    }
    if qp.pd.context.is_refusing() {
        return Err(libc::EIO);
    }
    if given & mask::CUR_STATE != 0 && attr.cur_qp_state != from {
        return Err(libc::EINVAL);
    }
    let bits = attributes(from, to, qp.abi.qp_type).ok_or(libc::EINVAL)?;
    if given & bits.needs != bits.needs || given & !(bits.needs | bits.allows | mask::STATE) != 0 {
        return Err(libc::EINVAL);
    }
    check_values(attr, given, qp.fabric.topology.ports(), qp.fabric.settings.driver)?;
    let mut port = qp.port();
    if given & mask::PORT != 0 {
        port.port = u32::from(attr.port_num);
    }
    let route = if given & mask::AV != 0 {
        Some(Route::find(qp.fabric, port, &attr.ah_attr)?)
    } else {
        None
    };
    if let Some(to) = route.and_then(|route| route.to()) {
        engine.faults.on_modify_qp(port, to).inspect_err(|errno| {
            if *errno == libc::ETIMEDOUT {
                qp.fabric.await_address();
            }
        })?;
    }
    remember(&mut known, attr, given);
    publish(qp, &known, given, route);
    let wants_event = given & mask::EN_SQD_ASYNC_NOTIFY != 0 && attr.en_sqd_async_notify != 0;
    enter(engine, qp, from, to, wants_event)?;
    if to == state::RESET {
        let cap = known.cap;
        *known = QpAttr { cap, port_num: 1, ..QpAttr::default() };
    }
    let ece = qp.ece_to_be.swap(0, SeqCst);
    if ece != 0 {
        qp.ece.store(ece & qp.fabric.settings.ece, SeqCst);
    }
    known.qp_state = to;
    qp.abi.state.store(to, SeqCst);
    if given & mask::STATE != 0 {
        qp.is_found_failed.store(false, SeqCst);
    }
    Ok(())
}

/// Hands the attributes to those who use them: the visiting peer (slot) and the requester (link).
fn publish(qp: &Qp, known: &QpAttr, given: i32, route: Option<Route>) {
    qp.slot.access.store(known.qp_access_flags, SeqCst);
    qp.slot.qkey.store(known.qkey, SeqCst);
    qp.slot.rnr_timer.store(u32::from(known.min_rnr_timer), SeqCst);
    qp.slot.read_depth.store(u32::from(known.max_dest_rd_atomic), SeqCst);
    if given & mask::PORT != 0 {
        qp.slot.port.store(u32::from(known.port_num), SeqCst);
    }
    let queue = &mut *lock(&qp.send);
    if given & mask::SQ_PSN != 0 {
        queue.connected();
    }
    if route.is_some() {
        // Another connection.
        queue.rules = KnownRules::default();
    }
    let link = &mut queue.link;
    if let Some(route) = route {
        link.mtu_bytes = mtu_bytes(known.path_mtu);
        link.peer = route.peer(known.dest_qp_num);
        link.route = route.with_mtu(link.mtu_bytes).looped(link.peer == qp.name());
        link.path = route.path(qp.fabric, qp.abi.qp_num, known.dest_qp_num);
        qp.slot.path.store(link.path.map_or(0, |path| path + 1), SeqCst);
        qp.slot.flow.store(route.take_flow(qp.fabric), SeqCst);
        qp.slot.peer.store(link.peer, SeqCst);
    }
    if given & mask::RQ_PSN != 0 {
        qp.slot.expected_psn.store(known.rq_psn, SeqCst);
        qp.slot.established.store(0, SeqCst);
    }
    if given & mask::SQ_PSN != 0 {
        link.psn = known.sq_psn;
    }
    link.timeout = known.timeout;
    link.retry_cnt = known.retry_cnt;
    link.rnr_retry = known.rnr_retry;
    link.reads = known.max_rd_atomic;
}

fn enter(
    engine: &'static Engine,
    qp: &Qp,
    from: u32,
    to: u32,
    wants_event: bool,
) -> Result<(), i32> {
    match to {
        state::RESET => {
            qp.slot.state.store(state::RESET, SeqCst);
            qp.reached.store(state::RESET, SeqCst);
            qp.drop_done(false);
            qp.slot.peer.store(qp.unconnected(), SeqCst);
            qp.slot.holder.store(0, SeqCst);
            qp.slot.expected_psn.store(0, SeqCst);
            lock(&qp.send).link.psn = 0;
            engine.discard(qp);
            // One that was in here may have taken it since.
            qp.slot.holder.store(0, SeqCst);
        }
        state::ERR => {
            qp.slot.state.store(state::ERR, SeqCst);
            qp.drop_done(qp.fabric.settings.error_drops);
            if !flush(engine, qp) {
                // A peer is still in.
                flush_soon(engine, qp);
            }
        }
        // A peer may have put the QP into the error state meanwhile.
        _ => {
            qp.slot.state.compare_exchange(from, to, SeqCst, SeqCst).map_err(|_| libc::EINVAL)?;
            if to <= state::RTS {
                qp.reached.fetch_max(to, SeqCst);
            }
            if to == state::RTS && from == state::RTR {
                // Some libraries take requests before.
                pump(engine, qp, &mut lock(&qp.send));
            }
            if (to == state::SQD) != (from == state::SQD) {
                drain(engine, qp, wants_event);
            }
        }
    }
    Ok(())
}

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
        let uses =
            |qp: &Qp| qp.pd.id == domain || qp.srq.as_ref().is_some_and(|srq| srq.pd.id == domain);
        let users: Vec<_> = lock(&self.qps).iter().filter(|qp| uses(qp)).cloned().collect();
        for qp in users {
            // Our own threads read and write it under this lock, peers while they are in the queue
            // pair. What is copied through the shared file is sent again from the beginning, and
            // finds the key invalid.
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

impl Engine {
    /// Opens a device.
    pub(crate) fn open(&self, device: &'static Device, ops: &Ops) -> Result<Arc<Context>, i32> {
        // Under this lock, or the service thread could pass on an event before it knows of the
        // context, which would not ask for it itself.
        let mut contexts = lock(&self.contexts);
        let context = Context::open(self.fabric, device, ops)?;
        // Those that are closed hold memory until nobody refers to them.
        contexts.retain(|known| known.strong_count() != 0);
        contexts.push(Arc::downgrade(&context));
        Ok(context)
    }

    /// Creates a completion queue.
    pub(crate) fn create_cq(
        &self,
        context: Arc<Context>,
        requested: CqRequest,
    ) -> Result<Arc<Cq>, i32> {
        let cq = Cq::new(context, requested)?;
        lock(&self.cqs).push(Arc::clone(&cq));
        Ok(cq)
    }

    /// Creates a shared receive queue.
    pub(crate) fn create_srq(
        &self,
        pd: &Arc<Pd>,
        srq_context: *mut c_void,
        wanted: SrqAttr,
    ) -> Result<Arc<Srq>, i32> {
        let srq = Srq::create(pd, srq_context, wanted)?;
        lock(&self.srqs).push(Arc::clone(&srq));
        Ok(srq)
    }

    /// Creates a queue pair. The errno value of a refusal may be 0: errno stays as it was.
    pub(crate) fn create_qp(
        &'static self,
        pd: &Arc<Pd>,
        requested: QpRequest,
    ) -> Result<Arc<Qp>, i32> {
        let qp = Qp::create(pd, requested)?;
        qp.join_cqs(Arc::new(Source::new(self, &qp)));
        lock(&self.qps).push(Arc::clone(&qp));
        Ok(qp)
    }

    /// Registers memory.
    pub(crate) fn register(&self, pd: &Arc<Pd>, range: Range, flags: u32) -> Result<Box<Mr>, i32> {
        Mr::check(range, flags)?;
        self.faults.on_reg_mr(pd.context.device.index)?;
        Mr::register(pd, range, flags)
    }
}
