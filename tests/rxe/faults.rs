//! Packets that get lost, cables that are cut, peers that die: the data is right, or both sides end
//! with a reason.

use crate::common::bench::Bench;
use crate::common::log::log;
use crate::common::pattern;
use crate::common::process::pair;
use crate::data::{carries, works};
use crate::guest::{Case, is_worker, network, network_command, shell};
use lab::error::Error;
use lab::error::Result;
use lab::nccl::abi;
use lab::pair::Setting;
use lab::pair::WorkerCtx;
use lab::transport::deadline::Deadline;
use lab::transport::deadline::finished;
use lab::transport::deadline::posted;
use serde::{Deserialize, Serialize};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;
use testkit::crash::{die, in_child_that_dies};
use testkit::wait_until;

const BYTES: usize = 20_000;
/// Messages before the fault.
const BEFORE: usize = 50;
/// Messages after it that may still come; the log tells more than their number if it does nothing.
const ENOUGH: usize = 2000;
/// Messages after a fault that passes.
const AFTER: usize = 300;
/// How long the connection may take to recover in a virtual machine without hardware support, and
/// the messages after that.
const RECOVERY: Duration = Duration::from_secs(90);
/// How long the side that the device tells nothing may wait. The transport of NCCL 2.21.5 would do
/// so for ever.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// What a send ends with when nobody answers.
const RETRY_EXCEEDED: u32 = 12;
/// What rxe says where there is no way to the peer.
const OPERATION_ERROR: u32 = 2;

/// How one side of a stream has ended.
#[derive(Debug, Serialize, Deserialize)]
struct End {
    messages: usize,
    /// What the call said; `None`: it waits.
    code: Option<u32>,
    log: String,
}

impl End {
    /// NCCL gets the code of a failed peer, and the log says what has happened.
    fn is_reported(&self, words: &[&str]) {
        assert_eq!(self.code, Some(abi::ncclRemoteError), "{self:#?}");
        let line = self
            .log
            .lines()
            .any(|line| line.contains("WARN") && words.iter().all(|word| line.contains(word)));
        assert!(line, "no line has {words:?}:\n{}", self.log);
    }
}

/// Rank 0 sends checked messages to rank 1 for ever; `fault` happens on its side after some of
/// them.
fn stream(case: &Case, worker: &mut WorkerCtx, fault: impl FnOnce()) -> Result<End> {
    let bench = Bench::open(worker, case.transport()?, 1 << 16)?;
    let mut fault = Some(fault);
    let mut messages = 0;
    let mut deadline = Deadline::new("the end of a stream", TIME_LIMIT);
    let failure = loop {
        let bytes = pattern(messages, BYTES);
        let outcome = if worker.rank() == 0 {
            if messages == BEFORE
                && let Some(fault) = fault.take()
            {
                fault();
            }
            bench.out.memory().write(0, &bytes)?;
            posted(&mut deadline, || bench.link.send.send(&bench.out, 0, BYTES, 0))
                .and_then(|send| finished(&mut deadline, send, &mut [0]))
        } else {
            posted(&mut deadline, || bench.link.recv.receive(&bench.into, 0, BYTES, 0))
                .and_then(|receive| finished(&mut deadline, receive, &mut [0]))
        };
        if let Err(failure) = outcome {
            break failure;
        }
        assert!(
            worker.rank() == 0 || bench.into.memory().read(0, BYTES)? == bytes,
            "message {messages} is wrong"
        );
        messages += 1;
        assert!(messages < BEFORE + ENOUGH, "the fault has no effect");
    };
    let code = match failure {
        Error::Call { code, .. } => Some(code),
        Error::Stalled { .. } => None,
        other => return Err(other),
    };
    Ok(End { messages, code, log: log() })
}

/// The device gives up after fractions of a second, and that ends the connection. Seven tries would
/// be endless: rxe takes that number so.
fn impatient(case: &Case) -> Setting {
    case.setting()
        .env("NCCL_IB_TIMEOUT", "14")
        .env("NCCL_IB_RETRY_CNT", "3")
        .env("FERRITE_FAILOVER", "0")
}

/// Rank 0 sends checked messages to rank 1. After some of them the shell `command` starts, which
/// need not end before they continue. All of them arrive.
fn outlasts(case: &Case, command: &str) -> Result<()> {
    pair(&case.setting(), |worker| {
        let bench = Bench::open(worker, case.transport()?, 1 << 16)?;
        let mut deadline = Deadline::new("a message after the fault", RECOVERY);
        let mut fault = None;
        for message in 0..BEFORE + AFTER {
            let bytes = pattern(message, BYTES);
            if worker.rank() == 1 {
                let receive =
                    posted(&mut deadline, || bench.link.recv.receive(&bench.into, 0, BYTES, 0))?;
                finished(&mut deadline, receive, &mut [0])?;
                assert!(bench.into.memory().read(0, BYTES)? == bytes, "message {message} is wrong");
                continue;
            }
            if message == BEFORE {
                fault = Some(Command::new("sh").args(["-ec", command]).spawn().expect("a shell"));
            }
            bench.out.memory().write(0, &bytes)?;
            let send = posted(&mut deadline, || bench.link.send.send(&bench.out, 0, BYTES, 0))?;
            finished(&mut deadline, send, &mut [0])?;
        }
        if let Some(mut fault) = fault {
            assert!(fault.wait().expect("it is a child").success(), "{command}");
        }
        // One of the two may have written the line of the fault, and the other one that of the
        // recovery.
        is_logged("recovered");
        worker.barrier()
    })?;
    Ok(())
}

/// A link goes down in mid-run and comes back: the connection resumes by itself.
pub(crate) fn link_flap(case: &Case) -> Result<()> {
    let network = network_command("ways");
    outlasts(case, &format!("ip link set veth0 down; sleep 0.5; ip link set veth0 up; {network}"))
}

/// For a second all packets vanish without any event of a device.
pub(crate) fn black_hole_that_ends(case: &Case) -> Result<()> {
    let all = |what: &str| format!("for i in 0 1; do tc qdisc {what}; done");
    let (add, del) = (all("add dev veth$i root netem loss 100%"), all("del dev veth$i root"));
    outlasts(case, &format!("{add}; sleep 1; {del}"))
}

/// One packet in a hundred is lost, one in a thousand overtakes others.
pub(crate) fn loss_and_reordering(case: &Case) -> Result<()> {
    if !is_worker() {
        shell(
            "for i in 0 1; do tc qdisc add dev veth$i root netem limit 10000 delay 200us loss 1% reorder 0.1%; done",
        );
    }
    pair(&case.setting().env("NCCL_IB_TIMEOUT", "14"), |worker| {
        let bench = Bench::open(worker, case.transport()?, 2 << 20)?;
        carries(worker, &bench)?;
        for i in 0..2 {
            bench.exchange(worker, i, 1_500_000 + i, 1_600_000)?;
        }
        worker.barrier()
    })?;
    if !is_worker() {
        let dropped = shell("tc -s qdisc show dev veth0");
        let dropped = dropped
            .split("dropped ")
            .nth(1)
            .and_then(|rest| rest.split(',').next())
            .map(str::to_owned);
        assert!(
            dropped.and_then(|n| n.parse::<u32>().ok()).is_some_and(|n| n > 0),
            "no packet was lost"
        );
    }
    Ok(())
}

/// All packets vanish, in mid-run; and the next connection works when they do not any more.
pub(crate) fn black_hole(case: &Case) -> Result<()> {
    let ends = pair(&impatient(case), |worker| {
        let end = stream(case, worker, || {
            shell("for i in 0 1; do tc qdisc add dev veth$i root netem loss 100%; done");
        })?;
        worker.barrier()?;
        if worker.rank() == 0 {
            shell("for i in 0 1; do tc qdisc del dev veth$i root; done");
        }
        worker.barrier()?;
        works(case, worker)?;
        Ok(end)
    })?;
    given_up(case, RETRY_EXCEEDED, &ends);
    Ok(())
}

fn given_up(case: &Case, status: u32, [sender, receiver]: &[End; 2]) {
    eprintln!("{sender:#?}\n{receiver:#?}");
    assert!(sender.messages >= BEFORE, "{sender:#?}");
    if case.is_stock() {
        assert_eq!(sender.code, Some(abi::ncclRemoteError), "{sender:#?}");
        return;
    }
    sender.is_reported(&["sending", "rxe0", &format!("(status {status})")]);
    receiver.is_reported(&["rxe1", "status "]);
}

/// Waits for these words: a thread of its own reports the events of a device.
fn is_logged(words: &str) {
    wait_until(format!("{words:?} in the log"), || log().contains(words));
}

/// A port goes down in mid-run: the kernel says so to both devices, since the cable has two ends.
pub(crate) fn link_down(case: &Case) -> Result<()> {
    let ends = pair(&impatient(case), |worker| {
        let end = stream(case, worker, || {
            shell("ip link set veth0 down");
        })?;
        let device = worker.rank();
        if !case.is_stock() {
            is_logged(&format!("rxe{device}:1 is down; traffic over it waits"));
        }
        worker.barrier()?;
        if worker.rank() == 0 {
            shell("ip link set veth0 up");
            network("ways");
            shell(
                "until [ \"$(cat /sys/class/infiniband/rxe[01]/ports/1/state | grep -c ACTIVE)\" = 2 ]; do sleep 0.1; done",
            );
        }
        worker.barrier()?;
        works(case, worker)?;
        if !case.is_stock() {
            is_logged(&format!("rxe{device}:1 is up"));
        }
        Ok(end)
    })?;
    given_up(case, OPERATION_ERROR, &ends);
    if !case.is_stock() {
        ends[0].is_reported(&["(status 2)", "soft-RoCE also reports it for a link that is down"]);
    }
    Ok(())
}

/// The receiver is killed, as the kernel's memory killer does it.
pub(crate) fn peer_killed(case: &Case) -> Result<()> {
    killed(case, false)
}

/// The same, and a worker that it has forked lives on, as those of data loaders do: the kernel ends
/// the queue pairs all the same.
pub(crate) fn peer_killed_before_its_worker(case: &Case) -> Result<()> {
    killed(case, true)
}

/// The receiver is killed, and may have a worker then, which outlives the test.
fn killed(case: &Case, has_worker: bool) -> Result<()> {
    // The port of a dead process refuses for a second before that is certain: retries last for
    // four.
    let ends = pair(&impatient(case).env("NCCL_IB_TIMEOUT", "18"), |worker| {
        if worker.rank() == 0 {
            let end = stream(case, worker, || ())?;
            worker.barrier()?;
            return Ok(Some(end));
        }
        let (here, workers) = UnixStream::pair().expect("a pair");
        in_child_that_dies(|| {
            let Ok(bench) =
                case.transport().and_then(|transport| Bench::open(worker, transport, 1 << 16))
            else {
                return;
            };
            let mut byte = [0_u8];
            // SAFETY: the child has only this one thread, makes only system calls,
            // and ends below.
            if has_worker && unsafe { libc::fork() } == 0 {
                // SAFETY: plain numbers; a valid byte. The read ends when rank 1 closes its end.
                unsafe {
                    libc::close(here.as_raw_fd());
                    libc::read(workers.as_raw_fd(), byte.as_mut_ptr().cast(), 1);
                    libc::_exit(0);
                }
            }
            let mut deadline = worker.deadline("messages before the end");
            for _ in 0..BEFORE {
                let received =
                    posted(&mut deadline, || bench.link.recv.receive(&bench.into, 0, BYTES, 0))
                        .and_then(|receive| finished(&mut deadline, receive, &mut [0]));
                if received.is_err() {
                    return;
                }
            }
            // Here, before the communicators are closed.
            die();
        });
        if !case.is_stock() {
            let left = shell("rdma resource show qp link rxe1 | grep -c 'type RC' || true");
            assert_eq!(left.trim(), "0", "queue pairs of a dead process");
        }
        let told = worker.barrier();
        drop(here);
        told.map(|()| None)
    })?;
    eprintln!("{ends:#?}");
    let [Some(sender), None] = &ends else { panic!("{ends:?}") };
    assert!(sender.messages >= BEFORE - 1, "{sender:#?}");
    if !case.is_stock() {
        sender.is_reported(&["sending", "has died"]);
    }
    Ok(())
}
