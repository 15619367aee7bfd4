//! What a process asks of its helper, and the answers: one packet each, over a socket that keeps
//! packets apart.

use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{io, ptr};

/// Of the packets, and of the arguments with which a helper is started. Both sides have to have the
/// same.
pub(crate) const FORMAT: u32 = 2;

pub(crate) mod kind {
    /// Imports an allocation by its handle.
    pub(crate) const IMPORT: u32 = 1;
    /// Imports one by the descriptor that comes along.
    pub(crate) const IMPORT_DESCRIPTOR: u32 = 2;
    /// Gives an allocation back, which its owner may free afterwards.
    pub(crate) const GIVE_BACK: u32 = 3;
    /// Copies from GPU memory to the stage.
    pub(crate) const COPY_OUT: u32 = 4;
    /// Copies from the stage to GPU memory.
    pub(crate) const COPY_IN: u32 = 5;
}

/// What a process asks for.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Order {
    /// The answer has the same.
    pub(crate) number: u64,
    pub(crate) kind: u32,
    /// Of the GPU, in both processes.
    pub(crate) ordinal: u32,
    /// In the process that asks: of an allocation, or of what is to be copied.
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    /// For copies: where in the stage, from its start.
    pub(crate) stage_at: u64,
    /// Of allocations: which one it is, of those that have been at this address.
    pub(crate) id: u64,
    /// For imports: the handle.
    pub(crate) handle: [u8; 64],
}

/// That an order is done, or why not.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Answer {
    pub(crate) number: u64,
    /// 0, or the driver's error.
    pub(crate) code: u64,
}

/// What can be sent as its bytes.
///
/// # Safety
/// It consists of integers without gaps between them, so that any bytes are a value.
pub(crate) unsafe trait Packet: Copy {}
// SAFETY: eight, four and four, then eight bytes each, and 64 single ones.
unsafe impl Packet for Order {}
// SAFETY: twice eight bytes.
unsafe impl Packet for Answer {}

const _: () = assert!(size_of::<Order>() == 6 * 8 + 64 && size_of::<Answer>() == 2 * 8);

/// Room for one descriptor beside a packet.
#[repr(C, align(8))]
struct Ancillary([u8; 64]);

/// Two connected ends. Nobody else inherits them.
pub(crate) fn pair() -> io::Result<[OwnedFd; 2]> {
    let mut fds = [-1; 2];
    // SAFETY: writes two integers.
    if unsafe {
        libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
            0,
            fds.as_mut_ptr(),
        )
    } < 0
    {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened.
    Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Sends `packet`, and `fd` with it. While the other side has much to read it waits, or fails with
/// [`io::ErrorKind::WouldBlock`].
pub(crate) fn send<P: Packet>(
    socket: BorrowedFd<'_>,
    packet: &P,
    fd: Option<BorrowedFd<'_>>,
    waits: bool,
) -> io::Result<()> {
    let mut ancillary = Ancillary([0; 64]);
    let mut part =
        libc::iovec { iov_base: ptr::from_ref(packet).cast_mut().cast(), iov_len: size_of::<P>() };
    // SAFETY: a valid header is made of zeros and the pointers set here, which outlive the call.
    let sent = unsafe {
        let mut header: libc::msghdr = zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        if let Some(fd) = fd {
            header.msg_control = ancillary.0.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(size_of::<i32>() as u32) as _;
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(size_of::<i32>() as u32) as _;
            libc::CMSG_DATA(first).cast::<i32>().write_unaligned(fd.as_raw_fd());
        }
        let flags = libc::MSG_NOSIGNAL | if waits { 0 } else { libc::MSG_DONTWAIT };
        retried(|| libc::sendmsg(socket.as_raw_fd(), &raw const header, flags))
    };
    sent.map(drop)
}

/// What [`receive`] has found.
#[derive(Debug)]
pub(crate) enum Received<P> {
    Packet(P, Option<OwnedFd>),
    /// There is none, and it was not to wait.
    Nothing,
    /// The other side has ended, or says what is no packet.
    Ended,
}

/// The next packet, and the descriptor that came with it.
pub(crate) fn receive<P: Packet>(socket: BorrowedFd<'_>, waits: bool) -> Received<P> {
    let mut ancillary = Ancillary([0; 64]);
    // SAFETY: a packet is integers, for which zeros are values; a header as in `send`.
    unsafe {
        let mut packet: P = zeroed();
        let mut part = libc::iovec { iov_base: (&raw mut packet).cast(), iov_len: size_of::<P>() };
        let mut header: libc::msghdr = zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = ancillary.0.as_mut_ptr().cast();
        header.msg_controllen = ancillary.0.len() as _;
        let flags = libc::MSG_CMSG_CLOEXEC | if waits { 0 } else { libc::MSG_DONTWAIT };
        match retried(|| libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags)) {
            Ok(bytes) if bytes == size_of::<P>() => {
                let first = libc::CMSG_FIRSTHDR(&raw const header);
                let has_fd = !first.is_null() && (*first).cmsg_type == libc::SCM_RIGHTS;
                let fd = has_fd.then(|| {
                    OwnedFd::from_raw_fd(libc::CMSG_DATA(first).cast::<i32>().read_unaligned())
                });
                Received::Packet(packet, fd)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Received::Nothing,
            Ok(_) | Err(_) => Received::Ended,
        }
    }
}

/// The result of a call that a signal may interrupt.
fn retried(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(bytes) => return Ok(bytes),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}
