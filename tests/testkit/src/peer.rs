//! A stream socket between two processes of one test, which run the same program.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

/// The process at the other end of a socket: the other side of a test, or the test that has started
/// this process.
#[derive(Debug)]
pub struct Peer(UnixStream);

impl Peer {
    /// Waits for words of the other process no longer than [`crate::wait::LIMIT`], twice: it may
    /// itself be waiting.
    #[must_use]
    pub fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(2 * crate::wait::LIMIT)).expect("a socket takes a timeout");
        Self(socket)
    }

    /// Sends a value without padding and without pointers.
    #[track_caller]
    pub fn send<T: Copy>(&mut self, value: &T) {
        assert!(self.try_send(value), "the other process has ended");
    }

    /// Receives a value of the type that the other process has sent, for which any bytes are valid.
    #[track_caller]
    pub fn recv<T: Copy + Default>(&mut self) -> T {
        self.try_recv().expect("the other process has not ended")
    }

    /// As [`Self::send`], to a process that may have ended: false if it has.
    pub fn try_send<T: Copy>(&mut self, value: &T) -> bool {
        // SAFETY: the bytes of a live value that has no padding, sent to the same program on the
        // same machine.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) };
        self.0.write_all(bytes).is_ok()
    }

    /// As [`Self::recv`], from a process that may have ended: `None` if it has.
    #[track_caller]
    pub fn try_recv<T: Copy + Default>(&mut self) -> Option<T> {
        let mut value = T::default();
        // SAFETY: the bytes of a live value for which any bytes are valid.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut((&raw mut value).cast::<u8>(), size_of::<T>())
        };
        match self.0.read_exact(bytes) {
            Ok(()) => Some(value),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
                ) =>
            {
                None
            }
            Err(error) => panic!("the other process neither speaks nor ends: {error}"),
        }
    }

    /// Sends a value and receives the other process's.
    #[track_caller]
    pub fn swap<T: Copy + Default>(&mut self, mine: &T) -> T {
        self.send(mine);
        self.recv()
    }

    /// Returns when both processes have called it.
    #[track_caller]
    pub fn barrier(&mut self) {
        const WORD: u8 = 77;
        assert_eq!(self.swap(&WORD), WORD, "the other process is at another point of the test");
    }
}
