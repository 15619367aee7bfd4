//! Connections within one process.

use lab::error::Error;
use lab::error::Result;
use lab::nccl::abi;
use lab::pair::WorkerCtx;
use lab::transport::Handle;
use lab::transport::Listener;
use lab::transport::Transport;
use lab::transport::buffer::Buffer;
use lab::transport::comm::RecvComm;
use lab::transport::comm::SendComm;
use lab::transport::deadline::finished;
use lab::transport::deadline::posted;
use lab::transport::listener::connect_and_accept;
use nccl_net::testing::proto::handle::Handle as Address;
use std::sync::Arc;
use std::time::Duration;
use testkit::relay::Relay;

/// What a handle of the plugin says.
pub(crate) fn address(handle: &Handle) -> Address {
    Address::parse(&handle.0).expect("the plugin's own handle")
}

/// Connects device `device` to `listener` by `handle`, which keeps what the plugin notes there, and
/// accepts; `between` runs before each attempt.
pub(crate) fn connect_pair(
    worker: &WorkerCtx,
    transport: &Transport,
    device: usize,
    handle: &mut Handle,
    listener: &mut Listener,
    between: impl FnMut(),
) -> Result<(SendComm, RecvComm)> {
    let mut deadline = worker.deadline("a connection within one process");
    connect_and_accept(transport, device, handle, listener, &mut deadline, between)
}

/// Connects device 1 to `listener` anew, and accepts.
pub(crate) fn connect(
    worker: &WorkerCtx,
    transport: &Transport,
    handle: &Handle,
    listener: &mut Listener,
) -> Result<(SendComm, RecvComm)> {
    connect_pair(worker, transport, 1, &mut Handle(handle.0), listener, || ())
}

/// A relay to the port of a listener.
pub(crate) fn relay_to(handle: &Handle) -> Relay {
    Relay::new(address(handle).address)
}

/// The handle of a listener that is reached by way of `relay`.
pub(crate) fn through(relay: &Relay, handle: &Handle) -> Handle {
    Handle(Address { address: relay.address(), ..address(handle) }.emit())
}

/// Listens on device 0, connects device 1 to that by way of `relay`, and accepts.
pub(crate) fn connect_through(
    worker: &WorkerCtx,
    transport: &Transport,
    relay: &mut Relay,
) -> Result<(SendComm, RecvComm, Listener)> {
    let (handle, mut listener) = transport.listen(0)?;
    let mut handle = through(relay, &handle);
    let (send, recv) =
        connect_pair(worker, transport, 1, &mut handle, &mut listener, || relay.forward())?;
    Ok((send, recv, listener))
}

/// Has `listener` look after its port so many times, a millisecond apart; nobody may be accepted.
pub(crate) fn accept_nobody(listener: &mut Listener, rounds: usize) -> Result<()> {
    for _ in 0..rounds {
        assert!(listener.accept()?.is_none(), "somebody was accepted");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// One message over a connection within this process.
pub(crate) fn works(worker: &WorkerCtx, (send, recv): (SendComm, RecvComm)) -> Result<()> {
    let memory = Arc::new(Buffer::new(8192)?);
    memory.write(0, b"after all that")?;
    let (out, into) = (send.register(&memory)?, recv.register(&memory)?);
    let mut deadline = worker.deadline("a message");
    let receive = posted(&mut deadline, || recv.receive(&into, 4096, 64, 0))?;
    let sending = posted(&mut deadline, || send.send(&out, 0, 14, 0))?;
    finished(&mut deadline, sending, &mut [0])?;
    finished(&mut deadline, receive, &mut [0])?;
    assert_eq!(memory.read(4096, 14)?, b"after all that");
    Ok(())
}

/// Sends until that is refused; the peer has to be called dead.
pub(crate) fn is_reported(worker: &WorkerCtx, send: &SendComm) -> Result<()> {
    let memory = Arc::new(Buffer::new(64)?);
    let region = send.register(&memory)?;
    let mut deadline = worker.deadline("an error");
    loop {
        match send.send(&region, 0, 8, 0) {
            Ok(_) => deadline.idle()?,
            Err(Error::Call { code: abi::ncclRemoteError, .. }) => return Ok(()),
            Err(other) => return Err(other),
        }
    }
}
