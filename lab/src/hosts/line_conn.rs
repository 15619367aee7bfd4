//! A TCP connection that carries one JSON object a line. Lines are bounded, and each wait has an end.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::system::interrupt;
use crate::system::output::plain;

/// Bytes of a line at most.
pub const MOST: usize = 64 << 10;
/// How often a wait looks whether the user has interrupted the program.
const LOOK: Duration = Duration::from_millis(200);

/// What has come over a connection, cut into lines.
#[derive(Debug, Default)]
pub struct Lines {
    pending: Vec<u8>,
    /// Bytes of it that are known to have no end of a line.
    searched: usize,
}

impl Lines {
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The next line that is whole, with its end.
    ///
    /// # Errors
    /// It is too long, and not whole yet.
    pub fn poll_line(&mut self) -> Result<Option<Vec<u8>>, String> {
        if let Some(at) = self.pending[self.searched..].iter().position(|byte| *byte == b'\n') {
            let rest = self.pending.split_off(self.searched + at + 1);
            self.searched = 0;
            return Ok(Some(std::mem::replace(&mut self.pending, rest)));
        }
        self.searched = self.pending.len();
        if self.searched >= MOST {
            return Err(format!("a line of more than {MOST} bytes"));
        }
        Ok(None)
    }
}

/// The message in a line.
///
/// # Errors
/// There is no such message. The text may be shown: what it has of the line is plain.
pub fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|e| plain(&format!("no such message: {e}")))
}

/// The connection, and what has been read beyond the last line.
#[derive(Debug)]
pub struct LineConn {
    stream: TcpStream,
    lines: Lines,
}

impl LineConn {
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap_or_default();
        Self { stream, lines: Lines::default() }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// It is too long, or the peer does not take it.
    pub fn send(&mut self, message: &impl Serialize, limit: Duration) -> Result<(), String> {
        let mut line = serde_json::to_vec(message).map_err(|e| e.to_string())?;
        line.push(b'\n');
        if line.len() > MOST {
            return Err(format!("a message of {} bytes; {MOST} are allowed", line.len()));
        }
        self.stream.set_write_timeout(Some(limit)).map_err(|e| e.to_string())?;
        self.stream.write_all(&line).map_err(|e| format!("cannot send: {e}"))
    }

    /// The next message.
    ///
    /// # Errors
    /// None has come whole within `limit`, the line is too long or no such message, or the connection has ended.
    pub fn receive<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T, String> {
        parse(&self.line(Instant::now() + limit, limit)?)
    }

    /// Whether the peer has said something that was not received, or has ended the connection.
    pub fn has_news(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap_or_default();
        let is_quiet = matches!(self.stream.peek(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock);
        self.stream.set_nonblocking(false).unwrap_or_default();
        !self.lines.is_empty() || !is_quiet
    }

    /// The connection for other uses: both ends agree that nothing more comes in lines.
    ///
    /// # Errors
    /// Something has come beyond the last line.
    pub fn into_stream(self) -> Result<TcpStream, String> {
        if !self.lines.is_empty() {
            return Err(format!("{} bytes more than were expected", self.lines.pending.len()));
        }
        self.stream.set_read_timeout(None).map_err(|e| e.to_string())?;
        self.stream.set_write_timeout(None).map_err(|e| e.to_string())?;
        Ok(self.stream)
    }

    fn line(&mut self, end: Instant, limit: Duration) -> Result<Vec<u8>, String> {
        loop {
            if let Some(line) = self.lines.poll_line()? {
                return Ok(line);
            }
            let late = || format!("nothing whole for {:.0} s", limit.as_secs_f64());
            let left = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()).ok_or_else(late)?;
            if interrupt::received() {
                return Err("interrupted".into());
            }
            self.stream.set_read_timeout(Some(left.min(LOOK))).map_err(|e| e.to_string())?;
            let mut part = [0; 4096];
            match self.stream.read(&mut part) {
                Ok(0) => return Err("the connection was closed".into()),
                Ok(count) => self.lines.handle_bytes(&part[..count]),
                Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted].contains(&e.kind()) => {}
                Err(e) => return Err(format!("the connection has failed: {e}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, LineConn) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let far = TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
        (far, LineConn::new(listener.accept().expect("accepted").0))
    }

    #[test]
    fn lines_come_in_parts_and_several_at_once() {
        let (mut far, mut near) = pair();
        far.write_all(b"[1,").expect("sent");
        far.write_all(b"2]\n[3]\n").expect("sent");
        let long = Duration::from_secs(20);
        assert_eq!(near.receive::<Vec<u8>>(long), Ok(vec![1, 2]));
        assert!(near.has_news());
        assert_eq!(near.receive::<Vec<u8>>(long), Ok(vec![3]));
        assert!(!near.has_news());
        drop(far);
        assert!(near.receive::<Vec<u8>>(long).is_err_and(|e| e.contains("closed")));
        assert!(near.has_news());
    }

    #[test]
    fn lines_without_end_and_without_sense_and_silence_are_errors() {
        let (mut far, mut near) = pair();
        assert!(near.receive::<u8>(Duration::from_millis(20)).is_err_and(|e| e.contains("nothing whole")));
        far.write_all(b"{]\n").expect("sent");
        assert!(near.receive::<u8>(Duration::from_secs(20)).is_err_and(|e| e.contains("no such message")));
        far.write_all(b"{\"\\u001b[2J\": 1}\n").expect("sent");
        let refused =
            near.receive::<crate::hosts::admission::Hello<u8>>(Duration::from_secs(20)).expect_err("no such field");
        assert!(refused.contains("[2J") && !refused.contains(char::is_control), "{refused:?}");
        let writer = std::thread::spawn(move || far.write_all(&vec![b'x'; 4 * MOST]));
        assert!(near.receive::<u8>(Duration::from_secs(20)).is_err_and(|e| e.contains("more than")));
        drop(near);
        let _ = writer.join();
    }
}
