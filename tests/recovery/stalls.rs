//! Waits that are no faults.

use crate::common::log::log;
use crate::common::plugin_transport;
use crate::fabric::{Fabric, recoveries, run};
use ferrite::error::Result;
use ferrite::pair::PeerConn;
use ferrite::transport::buffer::Buffer;
use ferrite::transport::deadline::{finished, posted};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The receiver asks its devices several times whether its clear-to-send has arrived, and each time they say so.
fn a_late_sender_is_waited_for(fabric: Fabric) -> Result<()> {
    const LIMIT_MS: u64 = 50;
    run(fabric, &[("FERRITE_STALL_MS", &LIMIT_MS.to_string())], |worker| {
        let transport = plugin_transport()?;
        let device = worker.rank().min(transport.devices()? - 1);
        let link = PeerConn::open(worker, &transport, device)?;
        let memory = || Buffer::new(8).map(Arc::new);
        let (out, into) = (link.send.register(&memory()?)?, link.recv.register(&memory()?)?);
        let mut deadline = worker.deadline("a message that comes late");
        let mut receive = posted(&mut deadline, || link.recv.receive(&into, 0, 8, 0))?;
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(8 * LIMIT_MS) {
            assert!(!receive.test(&mut [0])?);
        }
        worker.barrier()?;
        let send = posted(&mut deadline, || link.send.send(&out, 0, 8, 0))?;
        finished(&mut deadline, send, &mut [0])?;
        finished(&mut deadline, receive, &mut [0])?;
        assert_eq!(recoveries(), 0, "{}", log());
        worker.barrier()
    })
}

#[test]
fn a_late_sender_is_waited_for_on_one_rail() -> Result<()> {
    a_late_sender_is_waited_for(Fabric::OneRail)
}

#[test]
fn a_late_sender_is_waited_for_on_two_rails() -> Result<()> {
    a_late_sender_is_waited_for(Fabric::TwoRails)
}
