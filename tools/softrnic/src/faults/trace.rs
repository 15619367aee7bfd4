//! A record of the faults that struck, one line each, appended to the file that `SOFTRNIC_TRACE` names. Lines of one
//! connection come in its order; sorted, the traces of two runs with the same seed and the same messages are equal.

use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;

use super::rule::Action;
use crate::qp::Qp;
use crate::route::Place;
use crate::send_queue::SendQueue;

/// Writes down that `action` struck transmission `attempt` (from 0) of message `number`.
pub(super) fn tell(qp: &Qp, queue: &SendQueue, number: u64, attempt: u32, action: Action) {
    let Some(path) = &qp.fabric.settings.trace else { return };
    let (from, to) = (qp.place(), Place::of_name(queue.link.peer));
    let flow = qp.slot.flow.load(Relaxed);
    let line = format!(
        "softrnic{}/{} > softrnic{}/{} flow {flow} message {number} transmission {}: {action}\n",
        from.device,
        from.port,
        to.device,
        to.port,
        attempt + 1
    );
    // One write per line: what several processes append does not mix.
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}
