//! The hook of the engine that injects the faults of the rules in force.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::engine::fault_hook::{Fault, FaultHook};
use crate::faults::apply::apply;
use crate::faults::matching::{Transmission, match_rule, salt};
use crate::faults::{call, trace};
use crate::network::port_id::PortId;
use crate::objects::qp::Qp;
use crate::objects::send_queue::SendQueue;
use crate::process::fabric::Fabric;
use crate::rules::action::ActionKind;
use crate::rules::known::{Connection, KnownRules};

/// Injects faults by the rules in the fabric.
#[derive(Debug)]
pub(crate) struct Injector {
    fabric: &'static Fabric,
    /// A state of the rules in which none is for polls or posts; 0: none is known.
    without_calls: AtomicU32,
}

impl Injector {
    pub(crate) fn new(fabric: &'static Fabric) -> Self {
        Self { fabric, without_calls: AtomicU32::new(0) }
    }

    /// Whether no rule is for polls or posts.
    #[inline]
    fn leaves_calls_alone(&self) -> bool {
        let epoch = self.fabric.header().rules_epoch.load(Acquire);
        epoch == self.without_calls.load(Relaxed) || !self.has_polls_or_posts(epoch)
    }

    #[cold]
    fn has_polls_or_posts(&self, epoch: u32) -> bool {
        let has_some = call::has_polls_or_posts(self.fabric);
        if !has_some {
            self.without_calls.store(epoch, Relaxed);
        }
        has_some
    }

    #[cold]
    fn find_fault(&self, qp: &Qp, queue: &mut SendQueue, epoch: u32) -> Option<Fault> {
        if qp.is_ud() {
            // Those known are of another datagram, which may go elsewhere.
            queue.rules = KnownRules::default();
            queue.lead_to(queue.executed);
        }
        let peer = queue.link.peer;
        let flow = qp.slot.flow.load(Relaxed);
        let connection = Connection { from: qp.port(), to: PortId::of_name(peer), flow, path: queue.link.path };
        queue.rules.refresh(self.fabric, epoch, connection);
        let (request, sges, inline) = queue.request(queue.executed);
        let bytes = inline.len() as u64 + sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>();
        let sent = Transmission {
            path: u64::from(flow) << 32 | (qp.name() >> 32) << 16 | peer >> 32,
            number: queue.number(),
            attempt: queue.head.attempts(),
            opcode: request.opcode,
            packet: bytes.min(queue.link.mtu_bytes.into()),
        };
        let seed = self.fabric.header().seed.load(Relaxed);
        let is_over = |kind: ActionKind| kind == ActionKind::Delay && queue.head.is_delayed;
        let (rule, id, action) = *queue
            .rules
            .iter()
            .find(|(rule, id, action)| !is_over(action.kind) && match_rule(rule, *id, seed, &sent))?;
        qp.slot.sent.faults.store(qp.slot.sent.faults.load(Relaxed) + 1, Relaxed);
        trace::write(self.fabric, &connection, &sent, action);
        let path = queue.link.path.filter(|_| rule.path.load(Relaxed) != 0);
        apply((qp, path), action, salt(id, seed, &sent))
    }
}

impl FaultHook for Injector {
    #[inline]
    fn on_transmission(&self, qp: &Qp, queue: &mut SendQueue) -> Option<Fault> {
        let epoch = self.fabric.header().rules_epoch.load(Acquire);
        // 0: there have never been any rules.
        if epoch == 0 || queue.rules.is_free(epoch) { None } else { self.find_fault(qp, queue, epoch) }
    }

    fn on_modify_qp(&self, from: PortId, to: PortId) -> Result<(), i32> {
        call::modify_qp(self.fabric, from, to)
    }

    fn on_reg_mr(&self, device: usize) -> Result<(), i32> {
        call::reg_mr(self.fabric, device)
    }

    fn on_poll_cq(&self, device: usize) -> Result<(), i32> {
        if self.leaves_calls_alone() { Ok(()) } else { call::poll_cq(self.fabric, device) }
    }

    fn on_post_send(&self, device: usize) -> Result<(), i32> {
        if self.leaves_calls_alone() { Ok(()) } else { call::post_send(self.fabric, device) }
    }
}
