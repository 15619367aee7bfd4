//! Connecting the rails of a connection: each goes to its own counterpart at the peer, by addresses
//! of its own, and is tried again or fails under its own name.

use crate::common::log::wait_for_gid_changes;
use crate::common::prelude::*;
use nccl_net::testing::proto::handle::HANDLE_BYTES;

/// A connection has all of its rails from the beginning, or none.
const ALL_RAILS: (&str, &str) = ("FERRITE_FAILOVER", "0");

/// The fused devices are softrnic0+softrnic1 and softrnic2+softrnic3; the plugin tells all it does.
fn over_two_rails(
    env: &[(&str, &str)],
    arguments: &[&str],
    body: impl FnOnce(&mut WorkerCtx) -> Result<()>,
) -> Result<()> {
    let adapt = |setting: Setting| {
        let setting = setting.env(ALL_INFO.0, ALL_INFO.1);
        env.iter().fold(setting, |setting, (name, value)| setting.env(name, value))
    };
    faithful::run(&[&["--devices", "4"], arguments].concat(), adapt, body)
}

/// Connects, and carries messages in both directions over both rails.
fn works(worker: &mut WorkerCtx) -> Result<()> {
    let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
    for (i, size) in [0, 1, 5000, 5000, 100_000].into_iter().enumerate() {
        bench.exchange(worker, i, size, size)?;
    }
    worker.barrier()
}

/// Has device 1 listen and device 0 connect in this process, until one of them fails.
fn refusal(worker: &WorkerCtx) -> Result<Error> {
    refusal_from(worker, 0)
}

/// The same with device `from`, which connects to the other one.
fn refusal_from(worker: &WorkerCtx, from: usize) -> Result<Error> {
    let transport = plugin_transport()?;
    let (mut handle, mut listener) = transport.listen(1 - from)?;
    let mut deadline = worker.deadline("a failure");
    loop {
        if let Err(e) =
            transport.connect(from, &mut handle).and_then(|_| listener.accept().map(drop))
        {
            return Ok(e);
        }
        deadline.idle()?;
    }
}

/// The sender's rails are in networks of their own, and both of the receiver's ports have an
/// address in either.
#[test]
fn each_rail_answers_in_the_network_of_its_counterpart() -> Result<()> {
    over_two_rails(&[], &["--gids", "rich"], |worker| {
        let (rank, first) = (worker.rank(), 2 * worker.rank());
        if rank == 0 {
            set("NCCL_IB_ADDR_RANGE", "10.96.0.0/13");
        }
        // The networks exist as long as somebody is on them.
        drop(plugin_transport()?);
        if rank == 0 {
            softrnic("gid 0/1 add 11 ::ffff:10.98.1.1 v2");
            softrnic("gid 1/1 add 12 ::ffff:10.99.1.1 v2");
        } else {
            for device in [2, 3] {
                softrnic(&format!("gid {device}/1 add 11 ::ffff:10.99.1.{device} v2"));
                softrnic(&format!("gid {device}/1 add 12 ::ffff:10.98.1.{device} v2"));
            }
        }
        worker.barrier()?;
        works(worker)?;
        wait_for_gid_changes(&[first, first + 1], rank + 1);
        worker.barrier()?;
        works(worker)?;
        let ways = [
            [
                ("11 10.98.1.1", "10.98.1.2", "softrnic2"),
                ("12 10.99.1.1", "10.99.1.3", "softrnic3"),
            ],
            [
                ("12 10.98.1.2", "10.98.1.1", "softrnic0"),
                ("11 10.99.1.3", "10.99.1.1", "softrnic1"),
            ],
        ];
        for (rail, (gid, far, peer)) in ways[rank].iter().enumerate() {
            let here = format!("softrnic{}: GID {gid} to GID {far}, ", first + rail);
            assert!(said(&[&here, &format!(" of {peer} port 1 of softrnic")]), "{here}: {}", log());
        }
        worker.barrier()
    })
}

/// A rail has the lesser of its two ends, whatever the others have.
#[test]
fn each_rail_has_an_mtu_of_its_own() -> Result<()> {
    let arguments = ["--mtu", "4096,softrnic1/1=1024,softrnic2/1=2048"];
    over_two_rails(&[], &arguments, |worker| {
        works(worker)?;
        for (rail, mtu) in [2048, 1024].into_iter().enumerate() {
            let (name, words) =
                (format!("softrnic{}: GID", 2 * worker.rank() + rail), format!("MTU {mtu}, "));
            assert!(said(&[&name, &words]), "{name} {words}: {}", log());
        }
        worker.barrier()
    })
}

/// Options of the devices are agreed on for each rail, both by senders and by receivers.
#[test]
fn the_devices_of_each_rail_agree_on_their_makers_options() -> Result<()> {
    over_two_rails(&[("NCCL_IB_QPS_PER_CONNECTION", "2")], &[], |worker| {
        set("SOFTRNIC_ECE", ["13", "7"][worker.rank()]);
        works(worker)?;
        for rail in 0..2 {
            let name = format!(
                "softrnic{} and softrnic{}",
                2 * worker.rank() + rail,
                2 - 2 * worker.rank() + rail
            );
            let lines = lab::nccl::debug_log::lines();
            let told = |line: &&String| {
                line.contains(&name) && line.contains("use ECE options 0x5 of 0xf000")
            };
            assert_eq!(lines.iter().filter(told).count(), 2, "{name}: {}", log());
        }
        worker.barrier()
    })
}

/// One rail's way is not there yet, the other one's is. Without failover, the connection waits for
/// both.
fn not_resolved_yet(device: &str) -> Result<()> {
    let fault = format!("modify-qp=ETIMEDOUT times=3 device={device}");
    let env =
        [("SOFTRNIC_FAULTS", fault.as_str()), ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "20"), ALL_RAILS];
    over_two_rails(&env, &[], |worker| {
        works(worker)?;
        let count = |words: &str| log().matches(words).count();
        let failed = count(", 20 ms apart (NCCL_IB_MQP_RETRY_CNT");
        assert_eq!(failed > 0, worker.rank() == 0, "{}", log());
        assert_eq!(failed, count(&format!("{device}: connected at attempt ")), "{}", log());
        worker.barrier()
    })
}

cases! { Result<()>;
    a_first_rail_whose_peer_is_not_resolved_yet_is_tried_again => not_resolved_yet("softrnic0");
    a_last_rail_whose_peer_is_not_resolved_yet_is_tried_again => not_resolved_yet("softrnic1");
}

/// Each has as many attempts as are allowed, no matter how many the one before it took.
#[test]
fn attempts_are_counted_for_each_rail() -> Result<()> {
    let env = [
        (
            "SOFTRNIC_FAULTS",
            "modify-qp=ETIMEDOUT times=4 device=softrnic2; modify-qp=ETIMEDOUT times=4 device=softrnic3",
        ),
        ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "10"),
        ("NCCL_IB_MQP_RETRY_CNT", "4"),
        ALL_RAILS,
    ];
    over_two_rails(&env, &[], |worker| {
        if worker.rank() == 0 {
            let transport = plugin_transport()?;
            let (mut handle, mut listener) = transport.listen(1)?;
            let mut deadline = worker.deadline("a connection");
            let (mut send, mut receive) = (None, None);
            while send.is_none() || receive.is_none() {
                if send.is_none() {
                    send = transport.connect(0, &mut handle)?;
                }
                if receive.is_none() {
                    receive = listener.accept()?;
                }
                deadline.idle()?;
            }
            for device in ["softrnic2", "softrnic3"] {
                assert!(said(&[device, ": connected at attempt 5"]), "{}", log());
            }
        }
        worker.barrier()
    })
}

#[test]
fn a_rail_that_cannot_be_connected_is_reported_with_both_ends() -> Result<()> {
    let env = [
        ("SOFTRNIC_FAULTS", "modify-qp=ETIMEDOUT device=softrnic3"),
        ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "10"),
        ("NCCL_IB_MQP_RETRY_CNT", "4"),
        ALL_RAILS,
    ];
    over_two_rails(&env, &[], |worker| {
        if worker.rank() == 0 {
            let failure = refusal(worker)?;
            assert!(matches!(failure, Error::Call { .. }), "{failure}");
            let words = [
                "accepting ",
                "ibv_modify_qp(softrnic3, queue pair",
                "to RTR failed: Connection timed out",
                "; softrnic3 with GID 10.82.1.4 (index 1), peer softrnic1 port 1 of softrnic0+softrnic1 of process",
                "with GID 10.82.1.2",
            ];
            assert!(said(&words), "{}", log());
        }
        worker.barrier()
    })
}

/// The listening end's time limit is shorter than its device needs, and its error says so.
#[test]
fn a_listener_that_cannot_connect_its_queue_pairs_in_time_does_not_blame_the_peer() -> Result<()> {
    let env = [
        ("SOFTRNIC_FAULTS", "modify-qp=ETIMEDOUT device=softrnic0"),
        ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "10"),
        ("NCCL_IB_MQP_RETRY_CNT", "10000"),
        ALL_RAILS,
    ];
    over_two_rails(&env, &[], |worker| {
        let words = "the queue pairs were not connected within 1 s (FERRITE_HANDSHAKE_TIMEOUT)";
        let mut deadline = worker.deadline("a refusal");
        if worker.rank() == 0 {
            set("FERRITE_HANDSHAKE_TIMEOUT", "1");
            let transport = plugin_transport()?;
            let (handle, mut listener) = transport.listen(0)?;
            worker.send_bytes(&handle.0)?;
            while !said(&["dismissed ", words]) {
                assert!(listener.accept()?.is_none(), "it cannot be connected");
                deadline.idle()?;
            }
        } else {
            let transport = plugin_transport()?;
            let bytes = worker.receive_bytes(HANDLE_BYTES)?;
            let mut handle = Handle(bytes.try_into().expect("a whole handle"));
            while transport.connect(1, &mut handle).is_ok() {
                deadline.idle()?;
            }
            assert!(said(&["the listener refuses: ", words]), "{}", log());
        }
        worker.barrier()
    })
}

#[test]
fn ports_that_stay_down_are_named() -> Result<()> {
    over_two_rails(&[("FERRITE_HANDSHAKE_TIMEOUT", "1")], &[], |worker| {
        if worker.rank() == 0 {
            let transport = plugin_transport()?;
            softrnic("port 0/1 down");
            softrnic("port 1/1 down");
            // The state of a port is used for up to a second until its event has come.
            std::thread::sleep(Duration::from_millis(1100));
            let (mut handle, _listener) = transport.listen(1)?;
            let mut deadline = worker.deadline("a refusal");
            while transport.connect(0, &mut handle).is_ok() {
                deadline.idle()?;
            }
            assert!(
                said(&["using softrnic1: the port is down", "still failing after 1 s"]),
                "{}",
                log()
            );
        }
        worker.barrier()
    })
}

/// What the log says when the only rail cannot be connected because of this errno.
fn likely_cause_of(errno: &str, words: &str) -> Result<()> {
    let fault = format!("modify-qp={errno} device=softrnic0 every=1");
    alone(talkative(&[("SOFTRNIC_FAULTS", &fault)]), |worker| {
        refusal(worker)?;
        assert!(said(&["to RTR failed", words, "10.82.1.1"]), "{words}: {}", log());
        Ok(())
    })
}

macro_rules! each_errno_has_a_likely_cause {
    ($($name:ident: $errno:expr, $words:expr,)*) => {$(
        #[test]
        fn $name() -> Result<()> {
            likely_cause_of($errno, $words)
        }
    )*};
}

each_errno_has_a_likely_cause! {
    the_likely_cause_of_enetunreach_is_a_route: "ENETUNREACH", "no route",
    the_likely_cause_of_eperm_is_what_the_kernel_forbids: "EPERM", "seccomp",
    the_likely_cause_of_enomem_is_room_in_the_device_or_the_cgroup: "ENOMEM", "rdma.max",
    the_likely_cause_of_einval_is_the_gid_index: "EINVAL", "NCCL_IB_GID_INDEX",
    the_likely_cause_of_etimedout_is_the_network: "ETIMEDOUT", "both ports in one network",
}

/// What the log said about a port at the start is in its errors.
#[test]
fn an_error_of_a_port_with_a_link_local_address_says_so() -> Result<()> {
    alone(talkative(&[]), |worker| {
        drop(plugin_transport()?);
        softrnic("gid 0/1 remove 1");
        softrnic("gid 1/1 remove 0");
        refusal_from(worker, 0)?;
        assert!(
            said(&["to RTR failed", "the peer has a link-local address only", "IP address"]),
            "{}",
            log()
        );
        refusal_from(worker, 1)?;
        assert!(
            said(&["to RTR failed", "softrnic0 has a link-local address only", "IP address"]),
            "{}",
            log()
        );
        Ok(())
    })
}
