//! A network of a test's own.

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Moves this thread, and the processes that it starts from now on, into a network namespace of its
/// own with the loopback interface alone. There no other test takes a port that one of these
/// processes has had: one that has died is dialled there for seconds. Where the system does not
/// allow it, they stay where they are.
pub fn own() {
    thread_local! {
        // A test has a thread of its own.
        static MOVED: OnceCell<bool> = const { OnceCell::new() };
    }
    MOVED.with(|moved| *moved.get_or_init(|| leave_for_own().is_ok()));
}

fn leave_for_own() -> io::Result<()> {
    let before = File::open("/proc/thread-self/ns/net")?;
    // SAFETY: a plain number.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    bring_up_loopback().inspect_err(|_| {
        // SAFETY: an open file and a plain number.
        let back = unsafe { libc::setns(before.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(back, 0, "{}", io::Error::last_os_error());
    })
}

fn bring_up_loopback() -> io::Result<()> {
    // SAFETY: plain numbers; `request` is a valid value of its type, and names an interface whose
    // flags are read and then set.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        check(socket)?;
        let socket = OwnedFd::from_raw_fd(socket);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request))?;
        request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request))
    }
}

fn check(code: libc::c_int) -> io::Result<()> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::OwnPort;
    use std::net::TcpListener;

    #[test]
    fn a_port_that_is_taken_outside_is_free_inside() {
        let outside = OwnPort::new();
        let _listener = outside.listen();
        let inside = std::thread::spawn(move || {
            own();
            let before = std::fs::read_link("/proc/thread-self/ns/net").expect("a namespace");
            own();
            let after = std::fs::read_link("/proc/thread-self/ns/net").expect("a namespace");
            assert_eq!(before, after, "once");
            (before, TcpListener::bind(outside.address()).is_ok())
        });
        let (namespace, is_free) = inside.join().expect("no panic");
        let stayed = namespace == std::fs::read_link("/proc/self/ns/net").expect("a namespace");
        if stayed {
            return crate::skipped("permission to make a network namespace");
        }
        assert!(is_free);
    }
}
