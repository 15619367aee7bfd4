//! Frames of a control connection: such that a test makes up, and the plugin's own first one.

use lab::error::Result;
use lab::pair::WorkerCtx;
use lab::transport::Handle;
use lab::transport::Transport;
use nccl_net::testing::proto::frame::{Assembler, Frame, Kind};
use nccl_net::testing::proto::handle::Handle as Address;
use nccl_net::testing::proto::handshake::Hello;
use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;
use testkit::port;

/// As much of a frame as tells which listener it is for.
pub(crate) fn frame(kind: Kind, token: [u8; 16]) -> Vec<u8> {
    Frame { kind, secret: [8; 16], body: token.to_vec() }.emit()
}

/// The hello that comes on `stream`; what comes before it is passed over.
pub(crate) fn hello_on(stream: &mut TcpStream) -> Frame {
    let mut assembler = Assembler::default();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a hello");
        assembler.handle_bytes(&byte);
        if let Some(frame) =
            assembler.poll_frame().expect("frames").filter(|frame| frame.kind == Kind::Hello)
        {
            return frame;
        }
    }
}

/// The hello that the plugin itself says for device 1, made out to the listener `to`; its queue
/// pairs are gone by then.
pub(crate) fn hello(worker: &WorkerCtx, transport: &Transport, to: &Address) -> Result<Vec<u8>> {
    let socket = port::listener();
    let decoy = Address { address: socket.local_addr().expect("an address"), ..*to };
    let mut handle = Handle(decoy.emit());
    let mut deadline = worker.deadline("the plugin's hello");
    let mut client = None;
    let mut assembler = Assembler::default();
    loop {
        assert!(transport.connect(1, &mut handle)?.is_none(), "nobody has answered");
        client = client.or_else(|| socket.accept().ok());
        if let Some((stream, _)) = &mut client {
            stream.set_read_timeout(Some(Duration::from_millis(10))).expect("a timeout");
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).unwrap_or(0);
            assembler.handle_bytes(&buffer[..count]);
        }
        // Before it, the plugin tells where it is called itself.
        let frame = assembler.poll_frame().expect("the plugin's own bytes");
        if let Some(frame) = frame.filter(|frame| frame.kind == Kind::Hello) {
            return Ok(Hello::parse(&frame.body).expect("a hello").frame([7; 16]).emit());
        }
        deadline.idle()?;
    }
}
