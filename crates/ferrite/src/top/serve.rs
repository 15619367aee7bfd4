//! Answers HTTP requests with metrics, one at a time.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use lab::error::{Error, Result};

/// How long a client may take for its request and the answer together.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// Bytes of a request at most.
const MAX_REQUEST: usize = 8192;

/// Where metrics are asked for.
#[derive(Debug)]
pub(crate) struct Server(TcpListener);

impl Server {
    /// Listens at `address`.
    ///
    /// # Errors
    /// The address cannot be had.
    pub(crate) fn new(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).map_err(|e| Error::io(format!("cannot listen at {address}"), e))?;
        listener.set_nonblocking(true).map_err(|e| Error::io("a socket that does not block", e))?;
        Ok(Self(listener))
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.0.local_addr().ok()
    }

    /// Answers the clients that are there, with what `metrics` returns. A client that does not speak, or goes away, is its own affair.
    pub(crate) fn poll(&self, mut metrics: impl FnMut() -> String) {
        while let Ok((stream, _)) = self.0.accept() {
            let _ = answer(stream, &mut metrics);
        }
    }
}

/// A client that has a time for all that it does.
struct Client {
    stream: TcpStream,
    until: Instant,
}

impl Client {
    /// What is left of its time.
    fn left(&self) -> std::io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Client {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

fn answer(stream: TcpStream, metrics: &mut impl FnMut() -> String) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    let mut stream = Client { stream, until: Instant::now() + TIME_LIMIT };
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    let is_whole = |request: &[u8]| request.windows(4).any(|four| four == b"\r\n\r\n");
    while !is_whole(&request) && request.len() < MAX_REQUEST {
        match stream.read(&mut piece)? {
            0 => break,
            count => request.extend_from_slice(&piece[..count]),
        }
    }
    let (status, kind, body) = match String::from_utf8_lossy(&request).split(' ').take(2).collect::<Vec<_>>()[..] {
        ["GET", "/metrics" | "/"] => {
            ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", metrics())
        }
        ["GET", _] => ("404 Not Found", "text/plain", "metrics are at /metrics\n".to_owned()),
        _ => ("400 Bad Request", "text/plain", "GET /metrics is expected\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(request: &str) -> String {
        let server = Server::new(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let mut client = TcpStream::connect(server.address().expect("an address")).expect("it listens");
        client.write_all(request.as_bytes()).expect("sent");
        client.shutdown(std::net::Shutdown::Write).expect("done");
        let mut answer = String::new();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| client.read_to_string(&mut answer).expect("an answer"));
            while !reader.is_finished() {
                server.poll(|| "# EOF\n".into());
            }
        });
        answer
    }

    #[test]
    fn a_client_that_says_a_byte_now_and_then_is_left_when_its_time_is_over() {
        let server = Server::new(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let mut client = TcpStream::connect(server.address().expect("an address")).expect("it listens");
        let (told, is_over) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let dripping = scope.spawn(move || {
                // As long as the server listens, and no longer than the test may take.
                let pause = || is_over.recv_timeout(TIME_LIMIT / 10) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
                (0..300).take_while(|_| pause() && client.write_all(b"G").is_ok()).count()
            });
            server.poll(|| "# EOF\n".into());
            drop(told);
            assert!(dripping.join().expect("it ends") < 300);
        });
    }

    #[test]
    fn metrics_are_answered_and_nothing_else() {
        let metrics = asked("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(
            metrics.starts_with("HTTP/1.1 200 OK\r\n")
                && metrics.ends_with("Content-Length: 6\r\nConnection: close\r\n\r\n# EOF\n")
        );
        assert!(asked("GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(asked("nonsense").starts_with("HTTP/1.1 400"));
        assert!(asked("").starts_with("HTTP/1.1 400"));
    }
}
