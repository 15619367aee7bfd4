//! What drivers do differently, and the plugin takes as it comes: how much inline data there is,
//! how they refuse, what their ports are, how deep their queues may be.

use crate::common::prelude::*;
use std::collections::VecDeque;

const ROOM: usize = 4096;
const GROUP: usize = 8;

/// A full group each way, which takes as many clear-to-sends at once.
fn exchange_group(worker: &WorkerCtx, bench: &Bench, round: usize) -> Result<()> {
    let place =
        |i: usize| RecvBuffer { region: &bench.into, offset: i * ROOM, len: ROOM, tag: i as i32 };
    let size = |i: usize| (round * 131 + i * 517) % (ROOM + 1);
    let bytes = |i: usize, rank: usize| pattern(round * 2 * GROUP + i * 2 + rank, size(i));
    let mut deadline = worker.deadline("a group");
    let places: [_; GROUP] = std::array::from_fn(place);
    let receive = posted(&mut deadline, || bench.link.recv.receive_group(&places))?;
    let mut sends = Vec::new();
    for i in 0..GROUP {
        bench.out.memory().write(i * ROOM, &bytes(i, worker.rank()))?;
        sends.push(posted(&mut deadline, || {
            bench.link.send.send(&bench.out, i * ROOM, size(i), i as i32)
        })?);
    }
    for send in sends {
        finished(&mut deadline, send, &mut [0])?;
    }
    let mut sizes = [0; GROUP];
    finished(&mut deadline, receive, &mut sizes)?;
    for (i, got) in sizes.iter().enumerate() {
        assert_eq!(*got, size(i) as i32, "round {round}, message {i}");
        assert!(
            bench.into.memory().read(i * ROOM, size(i))? == bytes(i, 1 - worker.rank()),
            "round {round}, message {i}"
        );
    }
    Ok(())
}

/// Groups until the ring of clear-to-sends has been filled several times, and single messages.
fn exchange_all(worker: &mut WorkerCtx) -> Result<()> {
    let bench = Bench::open(worker, plugin_transport()?, 1 << 17)?;
    for round in 0..200 {
        exchange_group(worker, &bench, round)?;
    }
    for (i, size) in [0, 1, 4096, 70_000].into_iter().enumerate() {
        bench.exchange(worker, i, size, size)?;
        bench.exchange(worker, i, size, size + 37)?;
    }
    // The device has refused nothing.
    assert!(!said(&["is recovering"]), "{}", log());
    Ok(())
}

/// Where devices have `most` inline bytes, and this becomes of who asks for more.
fn inline(most: &str, excess: &str, setting: Setting) -> Setting {
    setting.env("SOFTRNIC_MAX_INLINE", most).env("SOFTRNIC_INLINE_EXCESS", excess)
}

fn messages_arrive(most: &str, excess: &str) -> Result<()> {
    let setting = require!(setting());
    pair(&inline(most, excess, setting), exchange_all)?;
    Ok(())
}

cases! { Result<()>;
    inline_data_is_refused_above_96_bytes => messages_arrive("96", "refuse");
    inline_data_is_refused_without_a_reason => messages_arrive("96", "silent");
    less_inline_data_is_granted_than_asked_for => messages_arrive("96", "grant");
    one_clear_to_send_fits_inline => messages_arrive("40", "silent");
    no_inline_data_is_granted => messages_arrive("0", "grant");
    all_inline_data_is_refused => messages_arrive("0", "refuse");
    less_inline_data_than_a_clear_to_send => messages_arrive("31", "grant");
}

/// Each rail needs a key of its own.
#[test]
fn two_rails_have_no_inline_data() -> Result<()> {
    let adapt = |setting| inline("0", "grant", setting);
    faithful::run(&["--devices", "4"], adapt, exchange_all)
}

/// Clear-to-sends have 64 bytes there.
#[test]
fn four_rails_have_less_inline_data_than_a_clear_to_send() -> Result<()> {
    let adapt = |setting| inline("63", "silent", setting);
    faithful::run(&["--devices", "4", "--ports", "2"], adapt, exchange_all)
}

/// One end alone has a device like that.
#[test]
fn one_end_has_no_inline_data() -> Result<()> {
    both(setting(), |worker| {
        if worker.rank() == 1 {
            set("SOFTRNIC_MAX_INLINE", "0");
        }
        exchange_all(worker)
    })
}

/// Devices as a driver has them (softrnic/docs/cards.md): groups and single messages, of the few
/// bytes that may go inline as well.
fn messages_arrive_on(driver: &str) -> Result<()> {
    both(setting().map(|setting| setting.env("SOFTRNIC_DRIVER", driver)), |worker| {
        exchange_all(worker)?;
        let bench = Bench::open(worker, plugin_transport()?, 1 << 10)?;
        (0..40).try_for_each(|size| bench.exchange(worker, size, size, size))
    })
}

cases! { Result<()>;
    messages_arrive_on_mlx5_and_bnxt_re =>
        ["mlx5", "bnxt_re"].into_iter().try_for_each(messages_arrive_on);
    messages_arrive_on_erdma_and_irdma =>
        ["erdma", "irdma"].into_iter().try_for_each(messages_arrive_on);
    messages_arrive_on_hns_and_ionic =>
        ["hns", "ionic"].into_iter().try_for_each(messages_arrive_on);
    /// It grants inline data, and reads the memory later.
    messages_arrive_on_mana => messages_arrive_on("mana");
    /// Linux's software device: no card, but what many try it on.
    messages_arrive_on_rxe => messages_arrive_on("rxe");
}

#[test]
fn messages_arrive_where_more_is_granted_than_asked_for() -> Result<()> {
    let setting = require!(setting());
    pair(&setting.env("SOFTRNIC_GRANT_MORE", "1"), exchange_all)?;
    Ok(())
}

#[test]
fn messages_arrive_on_the_oldest_and_the_newest_generation_of_mlx5() -> Result<()> {
    ["mlx5-cx4", "mlx5-cx8"].into_iter().try_for_each(messages_arrive_on)
}

/// The speed of the first device as reported to NCCL, in Gb/s.
fn told_gbps(setting: &Setting) -> Result<i32> {
    let [told, _] = pair(setting, |_| Ok(plugin_transport()?.properties(0)?.speed_mbps / 1000))?;
    Ok(told)
}

/// Only the newer attribute reports 200 Gb/s per lane.
#[test]
fn a_connectx_8_has_another_speed_on_infiniband() -> Result<()> {
    let setting = require!(setting()).env("SOFTRNIC_DRIVER", "mlx5-cx8");
    assert_eq!(told_gbps(&setting)?, 400);
    assert_eq!(told_gbps(&setting.env("SOFTRNIC_LINK", "ib"))?, 800);
    Ok(())
}

/// libibverbs does not know the newer attribute, and the older one stops at 100 Gb/s a lane: the
/// kernel tells more.
#[test]
fn a_speed_beyond_the_old_attribute_is_the_kernels() -> Result<()> {
    let adapt =
        |setting: Setting| setting.env("SOFTRNIC_OLD_SPEED", "1").env("NCCL_IB_MERGE_NICS", "0");
    faithful::run(&["--driver", "mlx5-cx8", "--link", "ib"], adapt, |_| {
        assert_eq!(plugin_transport()?.properties(0)?.speed_mbps, 800_000);
        Ok(())
    })
}

/// Nor does the kernel tell it.
#[test]
fn a_speed_that_nobody_tells_is_that_of_the_old_attribute() -> Result<()> {
    let setting = require!(setting()).env("SOFTRNIC_DRIVER", "mlx5-cx8").env("SOFTRNIC_LINK", "ib");
    assert_eq!(told_gbps(&setting.env("SOFTRNIC_OLD_SPEED", "1"))?, 400);
    Ok(())
}

#[test]
fn efa_means_no_device() -> Result<()> {
    both(talkative(&[("SOFTRNIC_DRIVER", "efa")]), |_| {
        assert_eq!(plugin_transport()?.devices()?, 0);
        assert!(
            said(&[
                "Ferrite has no device: 2 RDMA device(s) are open",
                "NCCL will use another network"
            ]),
            "{}",
            log()
        );
        Ok(())
    })
}

/// What a refusal says that no size of inline data would have mended.
fn refusal(variable: &str, value: &str, words: &[&str]) -> Result<()> {
    alone(talkative(&[(variable, value)]), |worker| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        match connect(worker, &transport, &handle, &mut listener) {
            Err(Error::Call { .. }) => {}
            other => panic!("{other:?}"),
        }
        assert!(said(words), "{}", log());
        assert!(!said(&["ibv_create_qp", "MEMLOCK"]), "{}", log());
        Ok(())
    })
}

#[test]
fn queues_that_are_too_long_are_not_blamed_on_locked_memory() -> Result<()> {
    let words = ["ibv_create_qp(softrnic", " send and ", "Invalid argument"];
    refusal("SOFTRNIC_MAX_QP_WR", "100", &words)
}

/// NCCL's built-in transport has queues of 512 work requests.
#[test]
fn queues_of_512_work_requests_suffice() -> Result<()> {
    let setting = require!(setting());
    pair(&setting.env("SOFTRNIC_MAX_QP_WR", "512"), exchange_all)?;
    Ok(())
}

cases! { Result<()>;
    /// Messages of three work requests each: two halves of a length, behind the data and apart from it.
    a_send_queue_takes_as_many_long_messages_as_it_has_room_for =>
        long_messages_fill_a_send_queue(&require!(setting()));
    /// The limit is not a refused post: irdma accepts more than it granted.
    a_send_queue_of_irdma_takes_no_more_long_messages =>
        long_messages_fill_a_send_queue(&require!(setting()).env("SOFTRNIC_DRIVER", "irdma"));
}

fn long_messages_fill_a_send_queue(setting: &Setting) -> Result<()> {
    const SENT: usize = (4 << 20) + 70_001;
    const ROOM: usize = 5 << 20;
    const MESSAGES: usize = 200;
    let setting =
        setting.clone().env("NCCL_IB_ADAPTIVE_ROUTING", "1").env("NCCL_IB_AR_THRESHOLD", "100");
    pair(&setting, |worker| {
        let bench = Bench::open(worker, plugin_transport()?, ROOM)?;
        let rank = worker.rank();
        let begin = |begun: usize| match rank {
            _ if begun == MESSAGES => Ok(None),
            0 => bench.link.send.send(&bench.out, 0, SENT, 3),
            _ => bench.link.recv.receive(&bench.into, 0, ROOM, 3),
        };
        let mut requests = VecDeque::new();
        if rank == 1 {
            // All are announced once they have been tested for a while.
            for _ in 0..10 * MESSAGES {
                requests.extend(begin(requests.len())?);
                assert!(
                    !requests.front_mut().expect("there is room").test(&mut [0])?,
                    "nothing has been sent"
                );
            }
        }
        worker.barrier()?;
        if rank == 0 {
            let mut deadline = worker.deadline("a send queue that is full");
            while requests.len() < 31 {
                match begin(requests.len())? {
                    Some(send) => requests.push_back(send),
                    None => deadline.idle()?,
                }
            }
            for _ in 0..1000 {
                let next = begin(requests.len())?;
                assert!(
                    next.is_none(),
                    "a send queue has room for as many and a probe, and the rest have to wait"
                );
            }
        }
        let mut begun = requests.len();
        let mut deadline = worker.deadline("long messages");
        while begun < MESSAGES || !requests.is_empty() {
            let next = begin(begun)?;
            begun += usize::from(next.is_some());
            requests.extend(next);
            if let Some(oldest) = requests.front_mut()
                && oldest.test(&mut [0])?
            {
                requests.pop_front();
                deadline.progress();
            }
            deadline.idle()?;
        }
        Ok(())
    })?;
    Ok(())
}

/// As EFA's are, which take no reliable connections: NCCL is to use another network.
#[test]
fn ports_that_are_neither_infiniband_nor_ethernet_are_passed_over() -> Result<()> {
    both(talkative(&[("SOFTRNIC_LINK", "roce,softrnic0/1=unspecified")]), |_| {
        let transport = plugin_transport()?;
        assert_eq!(
            (transport.devices()?, transport.properties(0)?.name.as_str()),
            (1, "softrnic1")
        );
        assert!(
            said(&["softrnic0:1 is not used", "link layer (0) is neither InfiniBand nor Ethernet"]),
            "{}",
            log()
        );
        Ok(())
    })
}

#[test]
fn no_port_of_infiniband_or_ethernet_means_no_device() -> Result<()> {
    both(talkative(&[("SOFTRNIC_LINK", "unspecified")]), |_| {
        assert_eq!(plugin_transport()?.devices()?, 0);
        assert!(
            said(&[
                "Ferrite has no device: 2 RDMA device(s) are open",
                "softrnic0:1, softrnic1:1: its link layer (0) is neither InfiniBand nor"
            ]),
            "{}",
            log()
        );
        Ok(())
    })
}

/// A registration that fits the limit many times over is refused for another reason, whatever the
/// device calls it.
#[test]
fn a_registration_within_the_limit_of_locked_memory_is_not_blamed_on_it() -> Result<()> {
    alone(talkative(&[("SOFTRNIC_FAULTS", "reg-mr=ENOMEM message=4..")]), |worker| {
        let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        // SAFETY: a valid limit, below the one there was or the same.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let (send, _recv) = connect(worker, &transport, &handle, &mut listener)?;
        for bytes in [64 << 10, 2 << 20] {
            assert!(send.register(&Arc::new(Buffer::new(bytes)?)).is_err(), "{bytes}");
        }
        assert!(said(&["ibv_reg_mr", "of 65536 bytes", "Cannot allocate memory"]), "{}", log());
        assert!(!said(&["ibv_reg_mr", "of 65536 bytes", "MEMLOCK"]), "{}", log());
        assert!(said(&["ibv_reg_mr", "of 2097152 bytes", "MEMLOCK, 1024 KiB here"]), "{}", log());
        Ok(())
    })
}

/// The device names the completion queue that has failed: the connections of others continue. That
/// its own one may recover is shown by tests/recovery.
#[test]
fn a_completion_queue_that_fails_ends_its_own_connection_only() -> Result<()> {
    both(talkative(&[("FERRITE_FAILOVER", "0")]), |worker| {
        let one = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        let other = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        one.exchange(worker, 1, 5000, 5000)?;
        worker.barrier()?;
        let mut deadline = worker.deadline("the failure");
        if worker.rank() == 1 {
            softrnic("inject cq-overrun device=softrnic1 opcode=write-imm times=1");
            let mut send = posted(&mut deadline, || one.link.send.send(&one.out, 0, 64, 3))?;
            while send.test(&mut [0]).is_ok() {
                deadline.idle()?;
            }
            while !said(&[
                "WARN",
                "softrnic1: a completion queue has failed; the connection to ",
                " ends",
            ]) {
                deadline.idle()?;
            }
            softrnic("inject --clear");
            assert!(!said(&["its connections end"]), "{}", log());
        } else {
            let mut receive = posted(&mut deadline, || one.link.recv.receive(&one.into, 0, 64, 3))?;
            while !matches!(receive.test(&mut [0]), Ok(true) | Err(_)) {
                deadline.idle()?;
            }
        }
        worker.barrier()?;
        for round in 0..20 {
            other.exchange(worker, round, 5000 + round, 6000)?;
        }
        worker.barrier()
    })
}
