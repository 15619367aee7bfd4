//! Processes that have control connections and no devices: several of them within one.

use nccl_net::inspect::iface::Interface;
use nccl_net::testing::control::driver::ControlDriver;
use nccl_net::testing::control::stream::ControlStream;
use nccl_net::testing::proto::event::Received;
use nccl_net::testing::proto::frame::{Frame, Kind};
use nccl_net::testing::proto::handle::{Secret, Token};
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use testkit::port::OwnPort;
use testkit::wait_until;

pub(crate) const FIRST_FRAME_LIMIT: Duration = Duration::from_secs(30);

/// A process: its control connections, and its port if it has listeners.
pub(crate) struct Process {
    pub(crate) driver: Arc<ControlDriver>,
    pub(crate) address: SocketAddr,
    /// Nobody else has it when the driver has closed it.
    _port: OwnPort,
}

impl Process {
    pub(crate) fn new() -> Self {
        Self::with_limit(FIRST_FRAME_LIMIT)
    }

    pub(crate) fn with_limit(limit: Duration) -> Self {
        let driver = ControlDriver::new(limit, None).expect("descriptors");
        let port = OwnPort::new();
        Self { driver, address: port.address(), _port: port }
    }

    pub(crate) fn listening(tokens: &[Token]) -> Self {
        let process = Self::new();
        tokens.iter().for_each(|token| process.listen(*token));
        process
    }

    pub(crate) fn listen(&self, token: Token) {
        let interface = Interface { name: "lo".into(), address: self.address };
        self.driver.listen(&interface, token).expect("a port");
    }

    pub(crate) fn poll(&self) {
        self.driver.poll().expect("no error of this process's");
    }

    /// A stream to a listener elsewhere, over a control connection that stands.
    pub(crate) fn reach(&self, address: SocketAddr, token: Token, secret: Secret) -> ControlStream {
        let stream =
            ControlStream::open(&self.driver, address, token, secret).expect("this is no child");
        wait_until("the control connection", || {
            stream.poll_connected().expect("somebody listens").then_some(())
        });
        stream
    }

    pub(crate) fn fetch(&self, token: Token) -> ControlStream {
        wait_until("the client", || {
            self.poll();
            ControlStream::fetch(&self.driver, &token)
        })
    }

    pub(crate) fn client(&self) -> TcpStream {
        TcpStream::connect(self.address).expect("it listens")
    }
}

pub(crate) fn heard(stream: &ControlStream) -> Received {
    wait_until("a frame", || Some(stream.poll_frame()).filter(|heard| *heard != Received::Nothing))
}

pub(crate) fn is_kind(stream: &ControlStream, kind: Kind) {
    let heard = heard(stream);
    assert!(
        matches!(&heard, Received::Frame(frame) if frame.kind == kind),
        "{heard:?} instead of {kind:?}"
    );
}

/// A frame that begins with the token, as hellos and resumptions do.
pub(crate) fn frame(kind: Kind, token: Token, secret: Secret) -> Vec<u8> {
    Frame { kind, secret, body: [token.as_slice(), &[5; 70]].concat() }.emit()
}

pub(crate) fn hello(token: Token) -> Vec<u8> {
    token.to_vec()
}

/// Whether the other end has closed; nothing is waited for.
pub(crate) fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).expect("non-blocking");
    !matches!(stream.read(&mut [0; 64]), Err(e) if e.kind() == ErrorKind::WouldBlock)
}

pub(crate) fn sockets() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").expect("readable");
    let links = links.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|to| to.to_string_lossy().starts_with("socket:")).count()
}
