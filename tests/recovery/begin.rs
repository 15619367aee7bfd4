//! A fault of one of two rails has the same outcome at whatever moment it begins: before there is a
//! connection, while it is set up, and later. Messages go over the other rail, and over both once
//! the fault is over.

use crate::common::prelude::*;
use crate::fabric::{Fabric, run, set_port, softrnic};
use crate::rails::until_rail_1;
use crate::stream::{SHORT, Stream};
use lab::transport::listener;

/// What is wrong with the second rail of rank 1, whose port is `softrnic3/1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    PortDown,
    NoAddress,
    LinkLocal,
    /// Queue pairs cannot be connected, for this reason.
    Rtr(&'static str),
    /// All packets are lost.
    BlackHole,
}

/// When it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    BeforeHello,
    BeforeReply,
    AfterCommit,
    AfterMessages,
}

impl Fault {
    fn begin(self) {
        match self {
            Self::PortDown => set_port("softrnic3/1", "down"),
            Self::NoAddress => ["0", "1"]
                .into_iter()
                .for_each(|index| drop(softrnic(&["gid", "3/1", "remove", index]))),
            Self::LinkLocal => drop(softrnic(&["gid", "3/1", "remove", "1"])),
            Self::Rtr(errno) => {
                softrnic(&["inject", &format!("modify-qp={errno} device=softrnic3 every=1")]);
                // New queue pairs are made.
                softrnic(&["inject", "qp-error device=softrnic3 times=1"]);
            }
            Self::BlackHole => {
                softrnic(&[
                    "inject",
                    "drop device=softrnic3 attempts=all; drop peer=softrnic3 attempts=all",
                ]);
            }
        }
    }

    fn end(self) {
        match self {
            Self::PortDown => set_port("softrnic3/1", "up"),
            Self::NoAddress | Self::LinkLocal => {
                softrnic(&["gid", "3/1", "add", "1", "::ffff:10.82.1.4", "v2"]);
            }
            Self::Rtr(_) | Self::BlackHole => drop(softrnic(&["inject", "--clear"])),
        }
    }
}

/// A connection each way. `between` is called when both ends have connected for a while, and nobody
/// has accepted.
fn open(
    worker: &mut WorkerCtx,
    transport: &Transport,
    between: impl FnOnce(&mut WorkerCtx) -> Result<()>,
) -> Result<PeerConn> {
    let device = worker.rank().min(transport.devices()? - 1);
    let (handle, mut listener) = transport.listen(device)?;
    let mut theirs = Handle([0; _]);
    theirs.0.copy_from_slice(&worker.exchange(&handle.0)?);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(200) {
        assert!(transport.connect(device, &mut theirs)?.is_none(), "nobody has accepted");
        std::thread::sleep(Duration::from_millis(1));
    }
    between(worker)?;
    let mut deadline = worker.deadline("connecting both ways");
    let (send, recv) = listener::connect_and_accept(
        transport,
        device,
        &mut theirs,
        &mut listener,
        &mut deadline,
        || (),
    )?;
    listener.close()?;
    Ok(PeerConn { send, recv })
}

fn has_one_outcome(fault: Fault, moment: Moment) -> Result<()> {
    // What cannot be connected is tried again before it is left out.
    let retries = [("NCCL_IB_MQP_RETRY_CNT", "3"), ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "20")];
    // A path that loses all is found out by tests that get longer.
    run(Fabric::TwoRails, &retries, |worker| {
        let transport = plugin_transport()?;
        let begin_at = |worker: &mut WorkerCtx, now: Moment| {
            worker.barrier()?;
            if worker.rank() == 0 && now == moment {
                fault.begin();
            }
            worker.barrier()
        };
        begin_at(worker, Moment::BeforeHello)?;
        let link = open(worker, &transport, |worker| begin_at(worker, Moment::BeforeReply))?;
        begin_at(worker, Moment::AfterCommit)?;
        let mut stream = Stream::over(link, transport, SHORT)?;
        stream.exchange(worker, 20)?;
        begin_at(worker, Moment::AfterMessages)?;
        stream.exchange(worker, 100)?;
        let is_left_out = matches!(moment, Moment::BeforeHello | Moment::BeforeReply)
            && fault != Fault::BlackHole;
        assert!(
            !is_left_out || said(&["WARN", "begins on rail(s) 0 of 2", "left out", "softrnic3"]),
            "{}",
            log()
        );
        worker.barrier()?;
        if worker.rank() == 0 {
            fault.end();
        }
        until_rail_1(worker, &mut stream, "both rails", |bytes| {
            bytes > 20 * SHORT.bytes as u64 / 5
        })?;
        worker.barrier()?;
        stream.close()
    })
}

macro_rules! at_each_moment {
    ($($name:ident: $fault:expr,)*) => {$(
        mod $name {
            use super::{Fault, Moment, has_one_outcome};
            use lab::error::Result;

            #[test]
            fn before_the_hello() -> Result<()> {
                has_one_outcome($fault, Moment::BeforeHello)
            }

            #[test]
            fn before_the_reply() -> Result<()> {
                has_one_outcome($fault, Moment::BeforeReply)
            }

            #[test]
            fn after_the_commit() -> Result<()> {
                has_one_outcome($fault, Moment::AfterCommit)
            }

            #[test]
            fn after_messages() -> Result<()> {
                has_one_outcome($fault, Moment::AfterMessages)
            }
        }
    )*};
}

at_each_moment! {
    a_port_is_down: Fault::PortDown,
    a_port_has_no_address: Fault::NoAddress,
    a_port_has_a_link_local_address_only: Fault::LinkLocal,
    an_address_cannot_be_resolved: Fault::Rtr("ETIMEDOUT"),
    a_device_refuses_a_path: Fault::Rtr("EINVAL"),
    a_device_has_no_memory_for_a_path: Fault::Rtr("ENOMEM"),
    all_packets_are_lost: Fault::BlackHole,
}

/// As where a switch learns an address: a later attempt finds it.
#[test]
fn a_connection_begins_on_a_rail_that_cannot_be_resolved_at_once() -> Result<()> {
    let rules = "modify-qp=ETIMEDOUT device=softrnic1 times=2; modify-qp=ETIMEDOUT device=softrnic3 times=2";
    let env = [("SOFTRNIC_FAULTS", rules), ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "20")];
    run(Fabric::TwoRails, &env, |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 20)?;
        assert!(!said(&["left out"]), "{}", log());
        assert!(said(&[": connected at attempt "]), "{}", log());
        worker.barrier()?;
        stream.close()
    })
}

/// The attempts take longer than a set-up may.
#[test]
fn a_rail_that_cannot_be_resolved_in_time_is_left_out() -> Result<()> {
    let env = [
        ("SOFTRNIC_FAULTS", "modify-qp=ETIMEDOUT device=softrnic3 every=1"),
        ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "1500"),
        ("FERRITE_HANDSHAKE_TIMEOUT", "2"),
    ];
    run(Fabric::TwoRails, &env, |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 20)?;
        let words = [
            "WARN", "begins on rail(s) 0 of 2", "left out", "within FERRITE_HANDSHAKE_TIMEOUT=2 s",
        ];
        assert!(said(&words), "{}", log());
        worker.barrier()?;
        stream.close()
    })
}

/// The first rail has IPv4 addresses. Of the second one, rank 0's port has them too, and the two
/// ports reach each other by IPv6 only.
#[test]
fn a_rail_whose_addresses_are_of_another_kind_than_the_first_ones_is_taken_in_later() -> Result<()>
{
    run(Fabric::TwoRails, &[], |worker| {
        let transport = plugin_transport()?;
        let (rank, port) = (worker.rank(), format!("{}/1", 2 * worker.rank() + 1));
        if rank == 1 {
            softrnic(&["gid", &port, "remove", "1"]);
        }
        softrnic(&["gid", &port, "add", ["2", "1"][rank], &format!("fd00:2::{}", rank + 1), "v2"]);
        worker.barrier()?;
        let link = open(worker, &transport, |worker| {
            if worker.rank() == 0 {
                set_port("softrnic3/1", "down");
            }
            worker.barrier()
        })?;
        let mut stream = Stream::over(link, transport, SHORT)?;
        stream.exchange(worker, 20)?;
        assert!(said(&["WARN", "begins on rail(s) 0 of 2", "left out", "softrnic3"]), "{}", log());
        worker.barrier()?;
        if rank == 0 {
            set_port("softrnic3/1", "up");
        }
        until_rail_1(worker, &mut stream, "both rails", |bytes| {
            bytes > 20 * SHORT.bytes as u64 / 5
        })?;
        worker.barrier()?;
        stream.close()
    })
}
