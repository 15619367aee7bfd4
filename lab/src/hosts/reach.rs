//! Connecting to a server that may not be there yet.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::system::interrupt;

/// One attempt takes so long at most.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// A connection to `HOST:PORT`, which is tried for `limit`, each time at all addresses of the name.
///
/// # Errors
/// [`Error::Io`] with what was in the way last; [`Error::Interrupted`].
pub fn reach(place: &str, limit: Duration) -> Result<TcpStream> {
    let start = Instant::now();
    loop {
        match place.to_socket_addrs().and_then(connect) {
            Ok(stream) => return Ok(stream),
            Err(problem) if start.elapsed() > limit => return Err(Error::io(format!("cannot reach {place}"), problem)),
            Err(_) => std::thread::sleep(PAUSE),
        }
        interrupt::check()?;
    }
}

/// A connection to the first of these addresses that takes one.
fn connect(places: impl Iterator<Item = SocketAddr>) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("no address of that name");
    for place in places {
        match TcpStream::connect_timeout(&place, ATTEMPT) {
            Ok(stream) => return Ok(stream),
            Err(problem) => last = problem,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn every_address_of_a_name_is_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let open = listener.local_addr().expect("its address");
        // Nobody listens at port 0.
        let closed = SocketAddr::from(([127, 0, 0, 1], 0));
        let stream = connect([closed, open].into_iter()).expect("connected");
        assert_eq!(stream.peer_addr().expect("connected"), open);
        assert!(connect([closed, closed].into_iter()).is_err());
        assert!(connect([].into_iter()).is_err_and(|problem| problem.to_string().contains("no address")));
    }
}
