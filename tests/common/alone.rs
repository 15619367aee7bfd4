//! Connections within one process, which does all by itself.

use ferrite::abi;
use ferrite::buffer::Buffer;
use ferrite::comm::{RecvComm, SendComm};
use ferrite::error::{Error, Result};
use ferrite::link::{finished, posted};
use ferrite::pair::{self, Setting};
use ferrite::seat::Seat;
use ferrite::transport::{Handle, Listener, Transport};
use nccl_net::proto::frame::Assembler;
use nccl_net::proto::handle::Handle as Address;
use nccl_net::proto::handshake::Hello;
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// Runs `body` in a process of its own, with the plugin over the software device; the peer only waits.
pub(crate) fn alone(test: &str, setting: &Setting, body: impl FnOnce(&mut Seat) -> Result<()>) -> Result<()> {
    pair::run(test, setting, |seat| {
        if seat.rank() == 0 {
            body(seat)?;
        }
        seat.barrier()
    })?;
    Ok(())
}

pub(crate) fn address(handle: &Handle) -> Address {
    Address::parse(&handle.0).expect("the plugin's own handle")
}

/// Connects to `listener` and accepts, in this one process.
pub(crate) fn connect(
    seat: &Seat,
    transport: &Transport,
    handle: &Handle,
    listener: &mut Listener,
) -> Result<(SendComm, RecvComm)> {
    let mut handle = Handle(handle.0);
    let mut deadline = seat.deadline("a connection within one process");
    let (mut send, mut recv) = (None, None);
    loop {
        if send.is_none() {
            send = transport.connect(1, &mut handle)?;
        }
        if recv.is_none() {
            recv = listener.accept()?;
        }
        match (send.take(), recv.take()) {
            (Some(s), Some(r)) => return Ok((s, r)),
            (s, r) => (send, recv) = (s, r),
        }
        deadline.idle()?;
    }
}

/// One message over a connection within this process.
pub(crate) fn works(seat: &Seat, (send, recv): (SendComm, RecvComm)) -> Result<()> {
    let memory = Arc::new(Buffer::new(8192)?);
    memory.write(0, b"after all that")?;
    let (out, into) = (send.register(&memory)?, recv.register(&memory)?);
    let mut deadline = seat.deadline("a message");
    let receive = posted(&mut deadline, || recv.receive(&into, 4096, 64, 0))?;
    let sending = posted(&mut deadline, || send.send(&out, 0, 14, 0))?;
    finished(&mut deadline, sending, &mut [0])?;
    finished(&mut deadline, receive, &mut [0])?;
    assert_eq!(memory.read(4096, 14)?, b"after all that");
    Ok(())
}

/// The hello that the plugin itself says for device 1, made out to the listener `to`; its queue pairs are gone by then.
pub(crate) fn hello(seat: &Seat, transport: &Transport, to: &Address) -> Result<Vec<u8>> {
    let socket = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    socket.set_nonblocking(true).expect("non-blocking");
    let decoy = Address { address: socket.local_addr().expect("an address"), token: to.token };
    let mut handle = Handle(decoy.emit());
    let mut deadline = seat.deadline("the plugin's hello");
    let mut caller = None;
    let mut assembler = Assembler::default();
    loop {
        assert!(transport.connect(1, &mut handle)?.is_none(), "nobody has answered");
        caller = caller.or_else(|| socket.accept().ok());
        if let Some((stream, _)) = &mut caller {
            stream.set_read_timeout(Some(Duration::from_millis(10))).expect("a timeout");
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).unwrap_or(0);
            assembler.handle_bytes(&buffer[..count]);
        }
        if let Some(frame) = assembler.poll_frame().expect("the plugin's own bytes") {
            return Ok(Hello::parse(&frame.body).expect("a hello").frame([7; 16]).emit());
        }
        deadline.idle()?;
    }
}

/// Sends until that is refused; the peer has to be called dead.
pub(crate) fn is_told(seat: &Seat, send: &SendComm) -> Result<()> {
    let memory = Arc::new(Buffer::new(64)?);
    let region = send.register(&memory)?;
    let mut deadline = seat.deadline("an error");
    loop {
        match send.send(&region, 0, 8, 0) {
            Ok(_) => deadline.idle()?,
            Err(Error::Call { code: abi::ncclRemoteError, .. }) => return Ok(()),
            Err(other) => return Err(other),
        }
    }
}
