//! Connecting to a server that may not be there yet.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::system::interrupt;

/// One attempt takes so long at most.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// A connection to `HOST:PORT`, which is tried for `limit`.
///
/// # Errors
/// [`Error::Io`] with what was in the way last; [`Error::Interrupted`].
pub(crate) fn reach(place: &str, limit: Duration) -> Result<TcpStream> {
    let start = Instant::now();
    loop {
        let tried = place.to_socket_addrs().and_then(|mut all| {
            let none = || std::io::Error::other("no address of that name");
            TcpStream::connect_timeout(&all.next().ok_or_else(none)?, ATTEMPT)
        });
        match tried {
            Ok(stream) => return Ok(stream),
            Err(problem) if start.elapsed() > limit => return Err(Error::io(format!("cannot reach {place}"), problem)),
            Err(_) => std::thread::sleep(PAUSE),
        }
        interrupt::check()?;
    }
}
