//! Sockets of the local domain that keep messages apart.

use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::host::errno::last_errno;
use crate::process::fabric::Fabric;
use crate::verbs::cm::message::Message;

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
    if unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) } == 0 { Ok(()) } else { Err(last_errno()) }
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
            let fd = libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags);
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
        let rc = libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut who).cast(), &raw mut length);
        rc == 0 && who.uid == libc::geteuid()
    }
}

/// False: the other end is gone.
pub(super) fn say(socket: &OwnedFd, message: &Message) -> bool {
    let bytes = message.to_bytes();
    // SAFETY: as many bytes as it says.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    sent == bytes.len() as isize
}

pub(super) fn hear(socket: &OwnedFd) -> Heard {
    let mut bytes = [0u8; ROOM];
    // SAFETY: room for as many bytes as it says.
    let got = unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), ROOM, 0) };
    match usize::try_from(got) {
        Err(_) if matches!(last_errno(), libc::EAGAIN | libc::EINTR) => Heard::Nothing,
        Ok(length @ 1..) => Message::of_bytes(&bytes[..length]).map_or(Heard::End, |it| Heard::Message(Box::new(it))),
        _ => Heard::End,
    }
}
