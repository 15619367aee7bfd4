//! Devices that throw away what has arrived and was not polled when a queue pair is put into the
//! error state.

use crate::fabric::{Fabric, end, run};
use crate::stream::{SHORT, Stream};
use lab::error::Result;

/// Of two rails one fails at the receiver again and again, while messages come over the other one.
/// What its device has acknowledged may be told to have been sent: it cannot be sent again.
#[test]
fn messages_that_have_arrived_are_not_lost_with_the_queue_pair() -> Result<()> {
    let rule = "qp-error device=softrnic3 opcode=write message=9.. every=5 times=100";
    run(Fabric::TwoRails, &[("SOFTRNIC_ERROR_DROPS", "1"), ("SOFTRNIC_FAULTS", rule)], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 4000)?;
        end(worker, stream)
    })
}
