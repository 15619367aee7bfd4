//! The data path neither allocates nor calls the kernel: the isend, irecv and test of messages,
//! once a connection stands.

mod common;

testkit::count_allocations!();

use common::connect::connect_pair;
use common::process::pair;
use common::setting::setting;
use common::{faithful, plugin_transport};
use lab::error::Result;
use lab::pair::Setting;
use lab::pair::WorkerCtx;
use lab::transport::Transport;
use lab::transport::buffer::Buffer;
use lab::transport::comm::RecvBuffer;
use lab::transport::comm::RecvComm;
use lab::transport::comm::Region;
use lab::transport::comm::Request;
use lab::transport::comm::SendComm;
use std::sync::Arc;
use testkit::cases;
use testkit::no_alloc_no_syscall::{Seen, is_supported, watch};
use testkit::require;

const IN_FLIGHT: usize = 8;
const TAG: i32 = 5;
/// Calls of `test` in which a message within one process has long arrived.
const POLLS: usize = 10_000_000;

/// A connection of this process with itself.
struct Own {
    // Regions first: they are deregistered before their communicators are closed.
    out: Region,
    into: Region,
    send: SendComm,
    recv: RecvComm,
    bytes: usize,
}

impl Own {
    fn open(worker: &WorkerCtx, transport: &Transport, bytes: usize) -> Result<Self> {
        let (mut handle, mut listener) = transport.listen(0)?;
        let (send, recv) = connect_pair(worker, transport, 0, &mut handle, &mut listener, || ())?;
        listener.close()?;
        let buffer = || Buffer::new(bytes * IN_FLIGHT).map(Arc::new);
        let (out, into) = (send.register(&buffer()?)?, recv.register(&buffer()?)?);
        Ok(Self { out, into, send, recv, bytes })
    }

    fn sends(&self) -> Result<[Request<'_>; IN_FLIGHT]> {
        each(|i| {
            loop {
                if let Some(request) = self.send.send(&self.out, i * self.bytes, self.bytes, TAG)? {
                    return Ok(request);
                }
            }
        })
    }

    /// Messages received one by one.
    fn singles(&self) -> Result<()> {
        let receives: [_; IN_FLIGHT] = each(|i| {
            let request = self.recv.receive(&self.into, i * self.bytes, self.bytes, TAG)?;
            Ok(request.expect("there is room"))
        })?;
        // Receives may be announced in batches: testing one announces them.
        let mut receives = receives.map(Some);
        for receive in &mut receives {
            let done = receive.as_mut().expect("not done").test(&mut [0])?;
            assert!(!done, "nothing has been sent");
        }
        self.sends()?.into_iter().try_for_each(|send| self.finish(send, 1))?;
        receives.into_iter().flatten().try_for_each(|receive| self.finish(receive, 1))
    }

    /// The same as one group.
    fn group(&self) -> Result<()> {
        let places: [_; IN_FLIGHT] = std::array::from_fn(|i| RecvBuffer {
            region: &self.into,
            offset: i * self.bytes,
            len: self.bytes,
            tag: TAG,
        });
        let receive = self.recv.receive_group(&places)?.expect("there is room");
        self.sends()?.into_iter().try_for_each(|send| self.finish(send, 1))?;
        self.finish(receive, IN_FLIGHT)
    }

    fn finish(&self, mut request: Request<'_>, count: usize) -> Result<()> {
        let mut sizes = [0; IN_FLIGHT];
        for _ in 0..POLLS {
            if request.test(&mut sizes[..count])? {
                assert!(
                    sizes[..count].iter().all(|size| *size as usize == self.bytes),
                    "{sizes:?}"
                );
                return Ok(());
            }
        }
        panic!("a message does not arrive");
    }
}

/// An array of what `make` gives, or its first error.
fn each<T>(mut make: impl FnMut(usize) -> Result<T>) -> Result<[T; IN_FLIGHT]> {
    let mut failed = None;
    let made: [Option<T>; IN_FLIGHT] =
        std::array::from_fn(|i| make(i).map_err(|e| failed = Some(e)).ok());
    match failed {
        Some(error) => Err(error),
        None => Ok(made.map(|one| one.expect("no error"))),
    }
}

type Round = fn(&Own) -> Result<()>;

/// The device's strict mode is not silent itself.
fn without_strictness(setting: Setting) -> Setting {
    setting.env("SOFTRNIC_STRICT", "0")
}

/// Rounds of messages of `bytes` bytes within rank 0: some to warm up, then some that are watched.
fn watched(worker: &WorkerCtx, bytes: usize, round: Round) -> Result<()> {
    if worker.rank() == 1 {
        return Ok(());
    }
    let transport = plugin_transport()?;
    let own = Own::open(worker, &transport, bytes)?;
    let rounds = |count| (0..count).try_for_each(|_| round(&own));
    rounds(100)?;
    let (result, seen) = watch(|| rounds(500)).expect("the test has asked whether it is supported");
    result?;
    assert_eq!(seen, Seen::default(), "500 times {IN_FLIGHT} messages of {bytes} B");
    Ok(())
}

/// Over one device, with `env`.
fn neither(bytes: usize, env: &[(&str, &str)], round: Round) -> Result<()> {
    let setting = require!(setting());
    require!(is_supported());
    let setting = env
        .iter()
        .fold(without_strictness(setting), |setting, (name, value)| setting.env(*name, *value));
    pair(&setting, |worker| watched(worker, bytes, round))?;
    Ok(())
}

#[test]
fn small_messages_neither_allocate_nor_call_the_system() -> Result<()> {
    neither(8, &[], Own::singles)
}

/// Clear-to-sends come from registered memory then.
#[test]
fn messages_without_inline_data_neither_allocate_nor_call_the_system() -> Result<()> {
    let env = [("SOFTRNIC_MAX_INLINE", "0"), ("SOFTRNIC_INLINE_EXCESS", "grant")];
    neither(8, &env, Own::singles)
}

cases! { Result<()>;
    large_messages_neither_allocate_nor_call_the_system => neither(1 << 16, &[], Own::singles);
    groups_neither_allocate_nor_call_the_system => neither(1000, &[], Own::group);
}

#[test]
fn messages_split_over_queue_pairs_neither_allocate_nor_call_the_system() -> Result<()> {
    let env = [
        ("NCCL_IB_QPS_PER_CONNECTION", "3"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS", "1"),
        ("NCCL_IB_ADAPTIVE_ROUTING", "1"),
    ];
    neither(1 << 16, &env, Own::singles)
}

/// The slow path learns shares, from messages of 64 KiB on.
#[test]
fn messages_over_lanes_neither_allocate_nor_call_the_system() -> Result<()> {
    neither(1 << 16, &[("FERRITE_LANES", "4")], Own::singles)
}

/// Over the rails of one device.
fn neither_over_rails(rails: usize, arguments: &[&str], round: Round) -> Result<()> {
    require!(is_supported());
    faithful::run(arguments, without_strictness, |worker| {
        let name = plugin_transport()?.properties(0)?.name;
        assert_eq!(name.split('+').count(), rails, "{name}");
        watched(worker, 1 << 16, round)
    })
}

cases! { Result<()>;
    messages_over_two_rails_neither_allocate_nor_call_the_system =>
        neither_over_rails(2, &[], Own::singles);
    /// Slots of clear-to-sends are twice as long then.
    messages_over_four_rails_neither_allocate_nor_call_the_system =>
        neither_over_rails(4, &["--devices", "4", "--ports", "2"], Own::group);
}
