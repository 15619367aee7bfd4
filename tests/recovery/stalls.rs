//! Waits that are no faults, and lost writes that a wait tells.

use crate::common::prelude::*;
use crate::fabric::{Fabric, inject_only, recoveries, run};
use std::collections::VecDeque;

/// Work requests that have been posted to each of this process's send queues, in ascending order.
fn requests() -> Vec<u64> {
    let pairs = own_queues("queue_pairs");
    let mut requests: Vec<_> =
        pairs.iter().map(|pair| pair["work"]["requests"].as_u64().expect("a number")).collect();
    requests.sort_unstable();
    requests
}

/// The receiver asks its devices once whether its clear-to-send has arrived, by a write over each
/// rail, and they say so.
fn a_late_sender_is_waited_for(fabric: Fabric) -> Result<()> {
    const LIMIT_MS: u64 = 50;
    let is_one = matches!(fabric, Fabric::OneRail);
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
        let all = if is_one { vec![0, 2] } else { vec![0, 0, 1, 2] };
        while requests().iter().sum::<u64>() < all.iter().sum() {
            assert!(!receive.test(&mut [0])?);
            deadline.idle()?;
        }
        assert_eq!(requests(), all);
        worker.barrier()?;
        let send = posted(&mut deadline, || link.send.send(&out, 0, 8, 0))?;
        finished(&mut deadline, send, &mut [0])?;
        finished(&mut deadline, receive, &mut [0])?;
        assert_eq!(recoveries(), 0, "{}", log());
        worker.barrier()
    })
}

cases! { Result<()>;
    a_late_sender_is_waited_for_on_one_rail => a_late_sender_is_waited_for(Fabric::OneRail);
    a_late_sender_is_waited_for_on_two_rails => a_late_sender_is_waited_for(Fabric::TwoRails);
}

/// More receives than the send queue has room for writes of their clear-to-sends. None of these is
/// complete until the device sends the first one again. Where they are tested without success for
/// long enough until then, a probe finds room beside them.
#[test]
fn clear_to_sends_wait_until_the_send_queue_has_room() -> Result<()> {
    const MESSAGES: usize = 100;
    // Of so large buffers, a write has one clear-to-send.
    const ROOM: usize = 1 << 17;
    run(Fabric::OneRail, &[("FERRITE_STALL_MS", "60000"), ("NCCL_IB_TIMEOUT", "16")], |worker| {
        let link = PeerConn::open(worker, &plugin_transport()?, worker.rank())?;
        let memory = || Buffer::new(ROOM).map(Arc::new);
        let (out, into) = (link.send.register(&memory()?)?, link.recv.register(&memory()?)?);
        if worker.rank() == 0 {
            inject_only("drop opcode=write times=1");
        }
        worker.barrier()?;
        let mut deadline = worker.deadline("messages");
        let receive = || posted(&mut deadline, || link.recv.receive(&into, 0, ROOM, 0));
        let mut receives =
            std::iter::repeat_with(receive).take(MESSAGES).collect::<Result<VecDeque<_>>>()?;
        let mut sends = VecDeque::new();
        let mut left = MESSAGES;
        while !receives.is_empty() || !sends.is_empty() || left > 0 {
            deadline.idle()?;
            if left > 0
                && let Some(send) = link.send.send(&out, 0, 8, 0)?
            {
                sends.push_back(send);
                left -= 1;
            }
            for requests in [&mut receives, &mut sends] {
                if let Some(first) = requests.front_mut()
                    && first.test(&mut [0])?
                {
                    requests.pop_front();
                }
            }
        }
        assert_eq!(recoveries(), 0, "{}", log());
        worker.barrier()
    })
}

/// Two threads have made calls, so that none of these takes the fast path. The device of one end
/// loses a write, and would send it again 17 s later.
fn a_lost_write_is_found_by_the_slow_path(lost: &str) -> Result<()> {
    let env = [("FERRITE_STALL_MS", "200"), ("NCCL_IB_TIMEOUT", "22"), ("FERRITE_SAMPLE", "0")];
    run(Fabric::OneRail, &env, |worker| {
        let PeerConn { send, recv } = PeerConn::open(worker, &plugin_transport()?, worker.rank())?;
        let memory = || Buffer::new(8).map(Arc::new);
        let (out, into) = (send.register(&memory()?)?, recv.register(&memory()?)?);
        let message = |worker: &WorkerCtx| {
            let mut deadline = worker.deadline("a message");
            let request = posted(&mut deadline, || match worker.rank() {
                0 => send.send(&out, 0, 8, 0),
                _ => recv.receive(&into, 0, 8, 0),
            })?;
            finished(&mut deadline, request, &mut [0])
        };
        message(worker)?;
        let other: &WorkerCtx = worker;
        std::thread::scope(|scope| scope.spawn(|| message(other)).join().expect("no panic"))?;
        worker.barrier()?;
        if worker.rank() == 0 {
            inject_only(lost);
        }
        worker.barrier()?;
        message(worker)?;
        // The line may come after the message.
        wait_until("the recovery", || recoveries() > 0);
        assert_eq!(recoveries(), 1, "{}", log());
        worker.barrier()
    })
}

cases! { Result<()>;
    a_lost_message_is_found_by_the_slow_path =>
        a_lost_write_is_found_by_the_slow_path("drop opcode=write-imm device=softrnic0 times=1");
    a_lost_clear_to_send_is_found_by_the_slow_path =>
        a_lost_write_is_found_by_the_slow_path("drop opcode=write device=softrnic1 times=1");
}
