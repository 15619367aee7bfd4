//! The lines that this process has dialled.

use super::channel::Channel;
use super::line::Line;
use crate::error::Result;
use crate::proto::handle::Handle;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The latest line to each address.
#[derive(Debug, Default)]
pub struct Lines {
    by_address: Mutex<HashMap<SocketAddr, Weak<Line>>>,
}

/// A way to a listener.
#[derive(Debug)]
pub struct Reach {
    /// The way.
    pub channel: Channel,
    /// Whether its line was there before; then the listener's process may have gone since.
    pub is_shared: bool,
}

impl Lines {
    /// A channel to the listener behind `handle`: on the line to its process, if there is one that can be used; else that
    /// process is dialled.
    ///
    /// # Errors
    /// The attempt fails at once.
    pub fn reach(&self, handle: &Handle) -> Result<Reach> {
        let mut lines = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lines.get(&handle.address).and_then(Weak::upgrade);
        if let Some(channel) = known.and_then(|line| line.open(handle.token)) {
            return Ok(Reach { channel, is_shared: true });
        }
        lines.retain(|_, line| line.strong_count() > 0);
        let line = Arc::new(Line::dial(handle.address)?);
        lines.insert(handle.address, Arc::downgrade(&line));
        let channel = line.open(handle.token).ok_or_else(|| crate::error::Error::internal("a new line is in use"))?;
        Ok(Reach { channel, is_shared: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn one_line_serves_all_tokens_of_an_address() {
        let lines = Lines::default();
        let listeners: Vec<_> = (0..2).map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("a port")).collect();
        let reach = |listener: usize, token| {
            let address = listeners[listener].local_addr().expect("an address");
            lines.reach(&Handle { address, token: [token; 16] }).expect("dialled")
        };
        let (a, b, other, again) = (reach(0, 1), reach(0, 2), reach(1, 3), reach(0, 1));
        assert_eq!([&a, &b, &other, &again].map(|r| r.is_shared), [false, true, false, false]);
        assert!(Arc::ptr_eq(a.channel.line(), b.channel.line()), "one process, one line");
        assert!(!Arc::ptr_eq(a.channel.line(), again.channel.line()), "but not twice for one listener");
        drop((a, b, other, again));
        assert!(!reach(0, 1).is_shared, "a line without channels is closed");
        assert_eq!(lines.by_address.lock().expect("no panic").len(), 1, "and forgotten");
    }
}
