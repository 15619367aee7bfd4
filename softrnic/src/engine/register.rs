//! Objects that come: what the engine has to know of them.

use std::ffi::c_void;
use std::sync::Arc;

use crate::abi::srq::SrqAttr;
use crate::engine::poll::Source;
use crate::engine::state::Engine;
use crate::host::lock::lock;
use crate::objects::context::{Context, Ops};
use crate::objects::cq::Cq;
use crate::objects::cq_request::CqRequest;
use crate::objects::device::Device;
use crate::objects::mr::{Mr, Range};
use crate::objects::pd::Pd;
use crate::objects::qp::Qp;
use crate::objects::qp_request::QpRequest;
use crate::objects::srq::Srq;

impl Engine {
    /// Opens a device.
    pub(crate) fn open(&self, device: &'static Device, ops: &Ops) -> Result<Arc<Context>, i32> {
        // Under this lock, or the service thread could pass on an event before it knows of the context, which would not
        // ask for it itself.
        let mut contexts = lock(&self.contexts);
        let context = Context::open(self.fabric, device, ops)?;
        // Those that are closed hold memory until nobody refers to them.
        contexts.retain(|known| known.strong_count() != 0);
        contexts.push(Arc::downgrade(&context));
        Ok(context)
    }

    /// Creates a completion queue.
    pub(crate) fn create_cq(&self, context: Arc<Context>, requested: CqRequest) -> Result<Arc<Cq>, i32> {
        let cq = Cq::new(context, requested)?;
        lock(&self.cqs).push(Arc::clone(&cq));
        Ok(cq)
    }

    /// Creates a shared receive queue.
    pub(crate) fn create_srq(&self, pd: &Arc<Pd>, srq_context: *mut c_void, wanted: SrqAttr) -> Result<Arc<Srq>, i32> {
        let srq = Srq::create(pd, srq_context, wanted)?;
        lock(&self.srqs).push(Arc::clone(&srq));
        Ok(srq)
    }

    /// Creates a queue pair. The errno value of a refusal may be 0: errno stays as it was.
    pub(crate) fn create_qp(&'static self, pd: &Arc<Pd>, requested: QpRequest) -> Result<Arc<Qp>, i32> {
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
