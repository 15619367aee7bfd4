//! What the engine of this process keeps: all its objects, and the copies that others have asked it for.

use std::sync::{Arc, Mutex, Weak};

use crate::engine::fault_hook::FaultHook;
use crate::objects::context::Context;
use crate::objects::cq::Cq;
use crate::objects::qp::Qp;
use crate::objects::srq::Srq;
use crate::process::fabric::Fabric;
use crate::remote::copy_server::CopyServer;

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
