//! Descriptors that a forked child of this process does not keep.
//!
//! A child has a copy of every descriptor, and the kernel ends a connection only when its last descriptor is closed: with a
//! child that outlives this process (a worker that loads data), peers would see this process's death when the child
//! ends. So a handler that runs in every child replaces its copies by a descriptor that does nothing. They are not just
//! closed: the child has copies of the objects too, which close the numbers once more if it drops them, and by then the
//! numbers could be of other files. Nor are they shut down, which would end the connection of the parent.
//!
//! The handler runs where only async-signal-safe functions may be called and any lock may be held by a thread that the child
//! does not have: the descriptors are bits in a table without a lock. `vfork` and `posix_spawn` do not run it; they exec, and
//! exec closes all of these descriptors.

#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Descriptors above this number stay with the child: more than a process may usually have (`fs.nr_open`).
const MOST: usize = 1 << 20;

static UNSHARED: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];
/// Words of the table that may have a bit.
static WORDS: AtomicUsize = AtomicUsize::new(0);
static HANDLER: Once = Once::new();

/// As long as this is there, forked children do not keep the descriptor. It has to be dropped before that is closed.
#[derive(Debug)]
pub struct Unshared(RawFd);

impl Unshared {
    /// From now on no forked child keeps `fd`.
    pub fn new(fd: RawFd) -> Self {
        // SAFETY: a function that lives as long as the process (the library is never unmapped) and does what such a handler may.
        HANDLER.call_once(|| match unsafe { libc::pthread_atfork(None, None, Some(leave)) } {
            0 => {}
            _ => log::debug!("no memory for a fork handler: forked children keep sockets"),
        });
        if let Some((word, bit)) = place(fd) {
            UNSHARED[word].fetch_or(bit, Ordering::Relaxed);
            WORDS.fetch_max(word + 1, Ordering::Relaxed);
        }
        Self(fd)
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        if let Some((word, bit)) = place(self.0) {
            UNSHARED[word].fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

fn place(fd: RawFd) -> Option<(usize, u64)> {
    let fd = usize::try_from(fd).ok().filter(|fd| *fd < MOST)?;
    Some((fd / 64, 1 << (fd % 64)))
}

/// Runs in a forked child. If no descriptor is to be had, the child keeps its copies.
extern "C" fn leave() {
    let words = WORDS.load(Ordering::Relaxed).min(UNSHARED.len());
    if UNSHARED[..words].iter().all(|word| word.load(Ordering::Relaxed) == 0) {
        return;
    }
    // SAFETY: plain numbers, here and below.
    let nothing = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if nothing < 0 {
        return;
    }
    for (index, word) in UNSHARED[..words].iter().enumerate() {
        // The child has no such descriptors from here on: it may close these and use the numbers for others, and fork again.
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = (index * 64) as RawFd + bits.trailing_zeros() as RawFd;
            // SAFETY: the number is that of one of our own descriptors, whose object in the child closes it later.
            unsafe { libc::dup3(nothing, fd, libc::O_CLOEXEC) };
            bits &= bits - 1;
        }
    }
    // SAFETY: made above, owned by nobody else.
    unsafe { libc::close(nothing) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_child_keeps_no_marked_descriptor_and_its_parent_does() {
        let (mut here, mut marked) = UnixStream::pair().expect("a pair");
        let (mut other, plain) = UnixStream::pair().expect("a pair");
        let mark = Unshared::new(marked.as_raw_fd());
        let (mut done, child_end) = UnixStream::pair().expect("a pair");
        // SAFETY: the child goes on alone with this one thread, and only waits to be killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a valid buffer of one byte; then plain numbers.
            unsafe { libc::write(child_end.as_raw_fd(), c"x".as_ptr().cast(), 1) };
            loop {
                // SAFETY: plain numbers.
                unsafe { libc::pause() };
            }
        }
        done.read_exact(&mut [0]).expect("the child runs");
        marked.write_all(b"1").expect("the parent's is open");
        here.read_exact(&mut [0]).expect("and works");
        drop(mark);
        drop((marked, plain));
        here.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("a timeout");
        let closed = here.read(&mut [0]);
        other.set_nonblocking(true).expect("non-blocking");
        let kept = other.read(&mut [0]);
        // SAFETY: our own child, which is waited for once.
        unsafe { (libc::kill(child, libc::SIGKILL), libc::waitpid(child, std::ptr::null_mut(), 0)) };
        assert_eq!(closed.expect("no error"), 0, "closed with the parent's");
        assert_eq!(kept.expect_err("the child has it").kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn a_child_may_use_the_number_for_another_file_and_fork_again() {
        let (mut here, there) = UnixStream::pair().expect("a pair");
        let (marked, _peer) = UnixStream::pair().expect("a pair");
        let _mark = Unshared::new(marked.as_raw_fd());
        // SAFETY: the child goes on alone with this one thread, calls nothing but the system, and ends below; so does its own.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: plain numbers, and a valid buffer of one byte.
            unsafe {
                libc::dup2(there.as_raw_fd(), marked.as_raw_fd());
                let grandchild = libc::fork();
                if grandchild == 0 {
                    libc::write(marked.as_raw_fd(), c"x".as_ptr().cast(), 1);
                } else {
                    libc::waitpid(grandchild, std::ptr::null_mut(), 0);
                }
                libc::_exit(0);
            }
        }
        // SAFETY: our own child, which is waited for once.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        drop(there);
        assert_eq!(here.read(&mut [0]).expect("no error"), 1, "the grandchild has lost its file");
    }
}
