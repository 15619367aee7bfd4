//! What devices report while connections stand.

use crate::common::prelude::*;

/// A device dies for good under an idle connection, which does not recover: what its process says,
/// and whether sends are refused then.
fn a_device_dies(heed: &str, words: &str, refused: bool) -> Result<()> {
    let setting =
        require!(talkative(&[("NCCL_IB_RETURN_ASYNC_EVENTS", heed), ("FERRITE_FAILOVER", "0")]));
    pair(&setting, |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        bench.exchange(worker, 1, 5000, 5000)?;
        worker.barrier()?;
        if worker.rank() == 1 {
            softrnic("fail 1");
            let mut deadline = worker.deadline("the event");
            while !said(&["WARN", "softrnic1: fatal device error", words]) {
                deadline.idle()?;
            }
            // Nobody receives: one that is not refused has to wait. The connections are notified
            // after the line is there.
            let refusal = loop {
                match bench.link.send.send(&bench.out, 0, 64, 3) {
                    Ok(None) if refused => deadline.idle()?,
                    Ok(None) => break None,
                    Ok(Some(_)) => panic!("nobody receives"),
                    Err(error) => break Some(error),
                }
            };
            match refusal {
                None => {}
                Some(Error::Call { .. }) => {
                    assert!(refused && said(&["sending to", "fatal device error"]), "{}", log())
                }
                Some(other) => return Err(other),
            }
        }
        worker.barrier()
    })?;
    Ok(())
}

cases! { Result<()>;
    a_fatal_event_ends_the_connections_of_the_device =>
        a_device_dies("1", "its connections end", true);
    a_fatal_event_is_only_logged_if_async_events_are_not_returned =>
        a_device_dies("0", "NCCL_IB_RETURN_ASYNC_EVENTS=0", false);
}
