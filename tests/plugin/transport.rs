//! The data path through the C ABI, between two processes on the software RDMA device.

use crate::common::bench::SIZES;
use crate::common::prelude::*;
use serde_json::Value;
use std::collections::VecDeque;

fn all_sizes(env: &[(&str, &str)]) -> Result<()> {
    let mut setting = require!(setting());
    for (name, value) in env {
        setting = setting.env(name, value);
    }
    pair(&setting, |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 8 << 20)?;
        for (i, &size) in SIZES.iter().enumerate() {
            bench.exchange(worker, i, size, size)?;
            bench.exchange(worker, i, size, size + 37)?;
            bench.exchange(worker, i, size + 37, size)?;
        }
        // Too long for one immediate, and not what was posted.
        bench.exchange(worker, 99, (4 << 20) + 70_001, 6 << 20)
    })?;
    Ok(())
}

cases! { Result<()>;
    every_size_arrives_whole_truncated_or_short => all_sizes(&[]);
    messages_take_turns_on_four_queue_pairs => all_sizes(&[("NCCL_IB_QPS_PER_CONNECTION", "4")]);
}

#[test]
fn messages_are_split_over_three_queue_pairs() -> Result<()> {
    let env = [("NCCL_IB_QPS_PER_CONNECTION", "3"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")];
    all_sizes(&env)
}

#[test]
fn messages_are_split_over_four_lanes() -> Result<()> {
    all_sizes(&[("FERRITE_LANES", "4")])
}

/// Data is lost then, as by the built-in transport: never a byte beyond the receive, and one line
/// for the connection.
fn a_message_beyond_its_receive_is_reported(
    env: &[(&str, &str)],
    sent: usize,
    room: usize,
) -> Result<()> {
    both(talkative(env), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 21)?;
        bench.exchange(worker, 0, room, sent)?;
        bench.exchange(worker, 1, sent, sent)?;
        assert!(!said(&["longer than its receive"]), "{}", log());
        (2..5).for_each(|round| bench.exchange(worker, round, sent, room).expect("it is cut"));
        let lines = log()
            .lines()
            .filter(|line| line.contains("longer than its receive"))
            .map(str::to_owned)
            .collect::<Vec<_>>();
        assert_eq!(lines.len(), 1, "{}", log());
        let peer = format!("softrnic{}", 1 - worker.rank());
        for words in [format!(" {sent} bytes"), format!(" {room} bytes"), peer] {
            assert!(lines[0].contains(&words), "{words:?} is not in {lines:?}");
        }
        worker.barrier()
    })
}

cases! { Result<()>;
    a_message_that_is_cut_to_its_receive_is_reported_once =>
        a_message_beyond_its_receive_is_reported(&[], 8192, 4096);
    a_message_of_several_stripes_that_is_cut_to_its_receive_is_reported_once =>
        a_message_beyond_its_receive_is_reported(&[("FERRITE_LANES", "4")], 1 << 20, 65536);
}

/// The queue pairs of this process that have sent data which the device has read from memory:
/// messages, and neither clear-to-sends nor tests of a path, which have no immediate.
pub(crate) fn with_data() -> Vec<Value> {
    let has = |pair: &Value, what: &str| pair["work"][what].as_u64().expect("a number") > 0;
    let has_data = |pair: &Value| has(pair, "gathered") && has(pair, "immediates");
    own_queues("queue_pairs").into_iter().filter(has_data).collect()
}

/// What they have done in all.
pub(crate) fn sum(queue_pairs: &[Value], what: &str) -> u64 {
    queue_pairs.iter().map(|pair| pair["work"][what].as_u64().expect("a number")).sum()
}

/// Their number.
pub(crate) fn queue_pairs_with_data() -> usize {
    with_data().len()
}

/// The card does not have to read them from memory then.
#[test]
fn messages_of_a_few_bytes_go_inline_and_larger_ones_do_not() -> Result<()> {
    both(setting(), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        bench.exchange(worker, 0, 1000, 1000)?;
        for round in 1..=10 {
            bench.exchange(worker, round, 8, 8)?;
        }
        let sender = with_data();
        assert_eq!(["requests", "gathered", "inline"].map(|what| sum(&sender, what)), [11, 1, 10]);
        worker.barrier()
    })
}

/// Twenty messages of less than 8 KiB, which are not cut, go over so many of four queue pairs; a
/// large one then goes over some more.
fn small_messages_go_over(expected: usize, env: (&str, &str)) -> Result<()> {
    pair(&require!(setting()).env(env.0, env.1), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        for round in 0..20 {
            bench.exchange(worker, round, 8000, 8000)?;
        }
        assert_eq!(queue_pairs_with_data(), expected);
        bench.exchange(worker, 20, 1 << 19, 1 << 19)?;
        assert_eq!(queue_pairs_with_data(), 4);
        Ok(())
    })?;
    Ok(())
}

cases! { Result<()>;
    small_messages_stay_on_one_lane_and_a_large_one_goes_over_all =>
        small_messages_go_over(1, ("FERRITE_LANES", "4"));
    small_messages_take_turns_on_queue_pairs_that_are_no_lanes =>
        small_messages_go_over(4, ("NCCL_IB_QPS_PER_CONNECTION", "4"));
}

#[test]
fn data_and_immediate_are_separate_writes_under_adaptive_routing() -> Result<()> {
    let env = [("NCCL_IB_ADAPTIVE_ROUTING", "1"), ("NCCL_IB_AR_THRESHOLD", "100")];
    all_sizes(&env)
}

/// The immediate of a longer part is a write of its own.
#[test]
fn as_many_bytes_as_the_threshold_of_adaptive_routing_are_one_write() -> Result<()> {
    let adaptive = [("NCCL_IB_ADAPTIVE_ROUTING", "1"), ("NCCL_IB_AR_THRESHOLD", "65536")];
    let split = [("NCCL_IB_QPS_PER_CONNECTION", "2"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")];
    let setting = adaptive
        .iter()
        .chain(&split)
        .fold(require!(setting()), |setting, (name, value)| setting.env(name, value));
    pair(&setting, |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 18)?;
        for (round, (bytes, writes)) in [(1 << 17, 2), ((1 << 17) + 256, 6)].into_iter().enumerate()
        {
            bench.exchange(worker, round, bytes, bytes)?;
            assert_eq!(sum(&with_data(), "requests"), writes);
        }
        worker.barrier()
    })?;
    Ok(())
}

/// A work request with so many bytes is the largest that mlx5 writes to the card instead of having
/// it fetched.
#[test]
fn six_clear_to_sends_are_one_write() -> Result<()> {
    alone(setting(), |worker| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let (_send, recv) = connect(worker, &transport, &handle, &mut listener)?;
        let into = recv.register(&Buffer::new(64).map(Arc::new)?)?;
        let places: Vec<_> = (0..8)
            .map(|tag| RecvBuffer { region: &into, offset: 8 * tag, len: 8, tag: tag as i32 })
            .collect();
        let mut deadline = worker.deadline("groups");
        let counted = || ["requests", "inline"].map(|what| sum(&own_queues("queue_pairs"), what));
        let _six = posted(&mut deadline, || recv.receive_group(&places[..6]))?;
        assert_eq!(counted(), [1, 1]);
        let _eight = posted(&mut deadline, || recv.receive_group(&places))?;
        assert_eq!(counted(), [3, 3]);
        Ok(())
    })
}

/// Each rail takes as many of these writes as its queue has room for, and more when they are
/// complete.
fn clear_to_sends_go_over_rails_in_turn(
    rails: usize,
    fabric: &[&str],
    devices_of_rank: [&str; 2],
) -> Result<()> {
    let body = |worker: &mut WorkerCtx| {
        set("NCCL_IB_HCA", devices_of_rank[worker.rank()]);
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        (0..100 * rails).try_for_each(|round| bench.exchange(worker, round, 8, 8))?;
        let queue_pairs = own_queues("queue_pairs");
        let written: Vec<_> =
            queue_pairs.iter().map(|pair| sum(std::slice::from_ref(pair), "requests")).collect();
        // As many of the end that receives as of the one that sends.
        assert_eq!(written, vec![100; 2 * rails]);
        worker.barrier()
    };
    // Without probes, which would be counted.
    faithful::run(fabric, |s| s.env("FERRITE_STALL_MS", "0"), body)
}

#[test]
fn clear_to_sends_go_over_two_rails_in_turn() -> Result<()> {
    clear_to_sends_go_over_rails_in_turn(
        2,
        &["--devices", "4"],
        ["softrnic0,softrnic1", "softrnic2,softrnic3"],
    )
}

#[test]
fn clear_to_sends_go_over_three_rails_in_turn() -> Result<()> {
    let devices = ["softrnic0,softrnic1:1", "softrnic2,softrnic3:1"];
    clear_to_sends_go_over_rails_in_turn(3, &["--devices", "4", "--ports", "2"], devices)
}

#[test]
fn unequal_settings_are_negotiated() -> Result<()> {
    both(setting(), |worker| {
        let value = if worker.rank() == 0 { "5" } else { "2" };
        // SAFETY: the process has one thread that looks at the environment: this one.
        unsafe {
            std::env::set_var("NCCL_IB_QPS_PER_CONNECTION", value);
            std::env::set_var(
                "NCCL_IB_SPLIT_DATA_ON_QPS",
                if worker.rank() == 0 { "1" } else { "0" },
            );
            std::env::set_var(
                "NCCL_IB_ADAPTIVE_ROUTING",
                if worker.rank() == 0 { "0" } else { "1" },
            );
        }
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        for round in 0..40 {
            bench.exchange(worker, round, 20_000 + round, 20_000 + round)?;
        }
        Ok(())
    })
}

/// Both processes send to each other, and rank 1 has `FERRITE_FAILOVER` as told.
fn failover_is(value: &str, negotiated: &str) -> Result<()> {
    both(talkative(&[]), |worker| {
        if worker.rank() == 1 {
            // SAFETY: the process has one thread that looks at the environment: this one.
            unsafe { std::env::set_var("FERRITE_FAILOVER", value) };
        }
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        bench.exchange(worker, 1, 5000, 5000)?;
        assert!(said(&[" sends to ", negotiated]), "{}", log());
        worker.barrier()
    })
}

#[test]
fn a_connection_is_recovered_if_both_ends_would() -> Result<()> {
    failover_is("1", "with failover")
}

#[test]
fn a_connection_is_not_recovered_if_the_sender_or_the_receiver_has_that_switched_off() -> Result<()>
{
    failover_is("0", "without failover")
}

#[test]
fn grouped_receives_match_by_tag_in_any_order() -> Result<()> {
    both(setting(), |worker| {
        const ROOM: usize = 4096;
        let bench = Bench::open(worker, plugin_transport()?, 64 << 10)?;
        for round in 0..200 {
            let n = 1 + round % 8;
            let size = |i: usize| {
                (round * 131 + i * 517) % (ROOM + 1) * usize::from(!(round + i).is_multiple_of(5))
            };
            let places: Vec<_> = (0..n)
                .map(|i| RecvBuffer {
                    region: &bench.into,
                    offset: i * ROOM,
                    len: ROOM,
                    tag: 100 + i as i32,
                })
                .collect();
            let mut deadline = worker.deadline("a group");
            let receive = posted(&mut deadline, || bench.link.recv.receive_group(&places))?;
            let mut sends = Vec::new();
            for k in 0..n {
                let i = (k * 5 + round) % n;
                let i = if n.is_multiple_of(5) { n - 1 - k } else { i };
                bench
                    .out
                    .memory()
                    .write(i * ROOM, &pattern(round * 16 + i * 2 + worker.rank(), size(i)))?;
                sends.push(posted(&mut deadline, || {
                    bench.link.send.send(&bench.out, i * ROOM, size(i), 100 + i as i32)
                })?);
            }
            for send in sends {
                finished(&mut deadline, send, &mut [0])?;
            }
            let mut sizes = [-7; 9];
            finished(&mut deadline, receive, &mut sizes)?;
            for (i, got) in sizes.iter().enumerate().take(n) {
                assert_eq!(*got, size(i) as i32, "round {round}, message {i}");
                let expected = pattern(round * 16 + i * 2 + 1 - worker.rank(), size(i));
                assert!(
                    bench.into.memory().read(i * ROOM, size(i))? == expected,
                    "round {round}, message {i}"
                );
            }
            assert!(sizes[n..].iter().all(|s| *s == -7), "sizes past the group are touched");
        }
        Ok(())
    })
}

#[test]
fn the_257th_receive_and_a_send_without_one_have_to_wait() -> Result<()> {
    both(setting(), |worker| {
        const COUNT: usize = 256;
        let bench = Bench::open(worker, plugin_transport()?, COUNT * 8)?;
        assert!(
            bench.link.send.send(&bench.out, 0, 8, 3)?.is_none(),
            "nothing has been announced yet"
        );
        for round in 0..3 {
            worker.barrier()?;
            let bytes = |i: usize, rank: usize| pattern(round * 1000 + i * 2 + rank, 8);
            let mut receives = VecDeque::new();
            for i in 0..COUNT {
                bench.out.memory().write(i * 8, &bytes(i, worker.rank()))?;
                receives.extend(bench.link.recv.receive(&bench.into, i * 8, 8, 3)?);
            }
            assert_eq!(receives.len(), COUNT);
            assert!(
                bench.link.recv.receive(&bench.into, 0, 8, 3)?.is_none(),
                "the 257th has to wait"
            );
            let mut deadline = worker.deadline("256 messages");
            let mut sends = VecDeque::new();
            let mut sent = 0;
            while sent < COUNT || !sends.is_empty() || !receives.is_empty() {
                if sent < COUNT
                    && let Some(send) = bench.link.send.send(&bench.out, sent * 8, 8, 3)?
                {
                    sends.push_back(send);
                    sent += 1;
                }
                for queue in [&mut sends, &mut receives] {
                    if let Some(oldest) = queue.front_mut()
                        && oldest.test(&mut [0])?
                    {
                        queue.pop_front();
                        deadline.progress();
                    }
                }
                deadline.idle()?;
            }
            for i in 0..COUNT {
                assert_eq!(
                    bench.into.memory().read(i * 8, 8)?,
                    bytes(i, 1 - worker.rank()),
                    "message {i}"
                );
            }
        }
        Ok(())
    })
}

#[test]
fn counters_and_rings_wrap() -> Result<()> {
    both(setting(), |worker| {
        const MESSAGES: usize = 70_000;
        const DEPTH: usize = 8;
        let bench = Bench::open(worker, plugin_transport()?, DEPTH * 8)?;
        let mut deadline = worker.deadline("70,000 messages");
        let (mut requests, mut begun) = (VecDeque::new(), 0usize);
        let mut ended = 0usize;
        while ended < MESSAGES {
            if begun < MESSAGES && begun - ended < DEPTH {
                let at = begun % DEPTH * 8;
                let request = if worker.rank() == 0 {
                    bench.out.memory().write(at, &begun.to_le_bytes())?;
                    bench.link.send.send(&bench.out, at, 8, 3)?
                } else {
                    bench.link.recv.receive(&bench.into, at, 8, 3)?
                };
                begun += usize::from(request.is_some());
                requests.extend(request);
            }
            if let Some(oldest) = requests.front_mut()
                && oldest.test(&mut [0])?
            {
                requests.pop_front();
                if worker.rank() == 1 {
                    let got = bench.into.memory().read(ended % DEPTH * 8, 8)?;
                    assert_eq!(got, ended.to_le_bytes(), "message {ended}");
                }
                ended += 1;
                deadline.progress();
                if ended.is_multiple_of(10_000) {
                    // On a slow machine, shows the parent that this process still runs.
                    worker.begin(format!("moving messages from {ended} on"))?;
                }
            }
            deadline.idle()?;
        }
        Ok(())
    })
}
