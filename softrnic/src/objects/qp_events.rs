//! The asynchronous events of a queue pair.

use std::sync::atomic::Ordering::SeqCst;

use crate::abi::consts::event;
use crate::objects::context::Event;
use crate::objects::qp::Qp;

impl Qp {
    /// Leaves an event of this QP for the service thread.
    pub(crate) fn tell_owner(&self, kind: u32) {
        self.slot.events.fetch_or(1 << kind, SeqCst);
        self.fabric.wake(self.fabric.me);
    }

    /// For the service thread: passes on the events that peers left here. True if one of them means an error.
    pub(crate) fn deliver(&self) -> bool {
        let events = self.slot.events.swap(0, SeqCst);
        for kind in (event::QP_FATAL..=event::SQ_DRAINED).chain([event::QP_LAST_WQE_REACHED]) {
            if events & 1 << kind != 0 {
                self.pd.context.events.push(Event { element: self.as_abi() as usize, kind });
            }
        }
        let fatal = 1 << event::QP_FATAL | 1 << event::QP_REQ_ERR | 1 << event::QP_ACCESS_ERR;
        events & fatal != 0
    }
}
