//! Messages of peers, and the sockets that carry them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::{mem, ptr};

use crate::abi::types::Gid;
use crate::host::last_errno;
use crate::process::fabric::Fabric;

/// Kinds of messages, by the names of the InfiniBand connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Asks for a connection.
    Req = 1,
    /// Accepts it.
    Rep = 2,
    /// Ready to use.
    Rtu = 3,
    /// Refuses it.
    Rej = 4,
    /// Ends it, and answers that.
    Dreq = 5,
}

/// Most private data of each kind over RDMA_PS_TCP; events have so many bytes of them, filled up
/// with zeros.
pub(super) const PRIVATE_OF_REQ: usize = 56;
pub(super) const PRIVATE_OF_REP: usize = 196;
pub(super) const PRIVATE_OF_REJ: usize = 148;

/// Changes with the layout of messages.
const VERSION: u8 = 1;

/// One message.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// Of a REJ: why (`ib_cm_rej_reason`).
    pub(super) reason: u8,
    /// Responder resources, initiator depth, flow control, retry count, RNR retry count, SRQ; as
    /// the application says it.
    pub(super) terms: [u8; 6],
    /// `ibv_mtu` of the port.
    pub(super) mtu: u8,
    pub(super) lid: u16,
    pub(super) qp_num: u32,
    pub(super) psn: u32,
    pub(super) gid: Gid,
    pub(super) source: SocketAddr,
    pub(super) target: SocketAddr,
    pub(super) private: Vec<u8>,
}

fn address_bytes(address: SocketAddr) -> [u8; 19] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; 19];
    bytes[0] = u8::from(address.is_ipv4());
    bytes[1..17].copy_from_slice(&ip.octets());
    bytes[17..].copy_from_slice(&address.port().to_be_bytes());
    bytes
}

fn address_of(bytes: [u8; 19]) -> SocketAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[1..17]);
    let ip = Ipv6Addr::from(octets);
    let port = u16::from_be_bytes([bytes[17], bytes[18]]);
    let mapped = ip.to_ipv4_mapped().filter(|_| bytes[0] == 1);
    SocketAddr::new(mapped.map_or(IpAddr::V6(ip), IpAddr::V4), port)
}

impl Message {
    /// One that says nothing but its kind.
    pub(super) fn bare(kind: Kind) -> Self {
        let nowhere = SocketAddr::from(([0; 4], 0));
        Self {
            kind,
            reason: 0,
            terms: [0; 6],
            mtu: 0,
            lid: 0,
            qp_num: 0,
            psn: 0,
            gid: [0; 16],
            source: nowhere,
            target: nowhere,
            private: Vec::new(),
        }
    }

    /// A refusal.
    pub(super) fn refusal(reason: u8, private: Vec<u8>) -> Self {
        Self { reason, private, ..Self::bare(Kind::Rej) }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.kind as u8, self.reason, self.mtu];
        bytes.extend(self.terms);
        bytes.extend(self.lid.to_be_bytes());
        bytes.extend(self.qp_num.to_be_bytes());
        bytes.extend(self.psn.to_be_bytes());
        bytes.extend(self.gid);
        bytes.extend(address_bytes(self.source));
        bytes.extend(address_bytes(self.target));
        bytes.extend(&self.private);
        bytes
    }

    /// `None`: it is none of this version.
    pub(super) fn of_bytes(mut bytes: &[u8]) -> Option<Self> {
        let [version, kind, reason, mtu] = take(&mut bytes)?;
        let known = [Kind::Req, Kind::Rep, Kind::Rtu, Kind::Rej, Kind::Dreq];
        let kind = known.into_iter().find(|one| *one as u8 == kind && version == VERSION)?;
        Some(Self {
            kind,
            reason,
            mtu,
            terms: take(&mut bytes)?,
            lid: u16::from_be_bytes(take(&mut bytes)?),
            qp_num: u32::from_be_bytes(take(&mut bytes)?),
            psn: u32::from_be_bytes(take(&mut bytes)?),
            gid: take(&mut bytes)?,
            source: address_of(take(&mut bytes)?),
            target: address_of(take(&mut bytes)?),
            private: bytes.to_vec(),
        })
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*head)
}

/// More than any message has.
const ROOM: usize = 1024;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// What came of a look at a socket.
pub(super) enum Heard {
    Message(Box<Message>),
    /// Nothing yet.
    Nothing,
    /// The other end has closed it, or says what is no message.
    End,
}

fn new() -> Result<OwnedFd, i32> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers; a new descriptor is ours.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, kind, 0);
        if fd < 0 { Err(last_errno()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// The abstract name of `port` on this fabric.
fn name(fabric: &Fabric, port: u16) -> (libc::sockaddr_un, u32) {
    let text = format!("softrnic-cm/{}/{port}", fabric.settings.fabric);
    // SAFETY: all zeros are valid.
    let mut name: libc::sockaddr_un = unsafe { mem::zeroed() };
    name.sun_family = libc::AF_UNIX as u16;
    // It fits: names of fabrics have 64 letters at most. The first byte stays 0.
    for (to, from) in name.sun_path[1..].iter_mut().zip(text.bytes()) {
        *to = from as libc::c_char;
    }
    (name, (size_of::<u16>() + 1 + text.len()) as u32)
}

/// A socket that has the name of `port`; EADDRINUSE if another has it.
pub(super) fn bind(fabric: &Fabric, port: u16) -> Result<OwnedFd, i32> {
    let (socket, (name, length)) = (new()?, name(fabric, port));
    // SAFETY: a name of that length.
    let rc = unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), length) };
    if rc == 0 { Ok(socket) } else { Err(last_errno()) }
}

pub(super) fn listen(socket: &OwnedFd) -> Result<(), i32> {
    // SAFETY: no pointers.
    if unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) } == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// A connection to who listens at `port`; ECONNREFUSED if nobody does.
pub(super) fn connect(fabric: &Fabric, port: u16) -> Result<OwnedFd, i32> {
    let (socket, (name, length)) = (new()?, name(fabric, port));
    // SAFETY: a name of that length.
    let rc = unsafe { libc::connect(socket.as_raw_fd(), (&raw const name).cast(), length) };
    if rc == 0 { Ok(socket) } else { Err(last_errno()) }
}

/// The next connection to a listener, of a process of the same user; EAGAIN: there is none.
pub(super) fn accept(listener: &OwnedFd) -> Result<OwnedFd, i32> {
    loop {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: who it is, is asked below; a new descriptor is ours.
        let socket = unsafe {
            let fd = libc::accept4(listener.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), flags);
            if fd < 0 {
                return Err(last_errno());
            }
            OwnedFd::from_raw_fd(fd)
        };
        if is_of_same_user(&socket) {
            return Ok(socket);
        }
    }
}

fn is_of_same_user(socket: &OwnedFd) -> bool {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
    let mut length = size_of::<libc::ucred>() as u32;
    // SAFETY: a structure of that length; geteuid has no preconditions.
    unsafe {
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        let rc = libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw mut who).cast(),
            &raw mut length,
        );
        rc == 0 && who.uid == libc::geteuid()
    }
}

/// False: the other end is gone.
pub(super) fn say(socket: &OwnedFd, message: &Message) -> bool {
    let bytes = message.to_bytes();
    // SAFETY: as many bytes as it says.
    let sent = unsafe {
        libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL)
    };
    sent == bytes.len() as isize
}

pub(super) fn hear(socket: &OwnedFd) -> Heard {
    let mut bytes = [0u8; ROOM];
    // SAFETY: room for as many bytes as it says.
    let got = unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), ROOM, 0) };
    match usize::try_from(got) {
        Err(_) if matches!(last_errno(), libc::EAGAIN | libc::EINTR) => Heard::Nothing,
        Ok(length @ 1..) => Message::of_bytes(&bytes[..length])
            .map_or(Heard::End, |it| Heard::Message(Box::new(it))),
        _ => Heard::End,
    }
}

/// `IB_CM_REJ_INVALID_SERVICE_ID`.
pub(super) const NOBODY_LISTENS: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let said = Message {
            reason: 28,
            terms: [1, 2, 3, 4, 5, 6],
            mtu: 5,
            lid: 7,
            qp_num: 0x12_3456,
            psn: 0x65_4321,
            gid: [9; 16],
            source: "127.0.0.1:7174".parse().expect("an address"),
            target: "[fe80::1]:80".parse().expect("an address"),
            private: vec![1, 2, 3],
            ..Message::bare(Kind::Rej)
        };
        let heard = Message::of_bytes(&said.to_bytes()).expect("it is understood");
        assert_eq!(format!("{heard:?}"), format!("{said:?}"));
        assert!(Message::of_bytes(&said.to_bytes()[..60]).is_none(), "a part");
        assert!(Message::of_bytes(&[VERSION + 1; 100]).is_none(), "of another version");
    }

    /// Each beginning of a message, and each with one byte changed: it is none, or one that can be
    /// said as it was heard.
    #[test]
    fn any_bytes_are_a_message_or_none() {
        let source = "[::ffff:10.0.0.1]:7".parse().expect("an address");
        let good =
            Message { source, private: vec![1, 2, 3], ..Message::bare(Kind::Req) }.to_bytes();
        let check = |bytes: &[u8]| {
            let Some(heard) = Message::of_bytes(bytes) else { return false };
            let again = Message::of_bytes(&heard.to_bytes()).expect("it is understood");
            assert_eq!(format!("{again:?}"), format!("{heard:?}"));
            assert!(heard.private.len() < bytes.len());
            true
        };
        let lengths: Vec<usize> =
            (0..=good.len()).filter(|length| check(&good[..*length])).collect();
        assert_eq!(
            lengths,
            [good.len() - 3, good.len() - 2, good.len() - 1, good.len()],
            "all but private data"
        );
        for at in 0..good.len() {
            for byte in 0..=u8::MAX {
                let mut bytes = good.clone();
                bytes[at] = byte;
                check(&bytes);
            }
        }
    }
}
