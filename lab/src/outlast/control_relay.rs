//! A TCP relay in front of the receiver's listener, which cuts or silences what passes through it at given times.

use std::net::TcpListener;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::check::relay::{self, Relay};
use crate::error::Result;
use crate::outlast::plan::LineFault;
use crate::transport::instance::Transport;
use crate::transport::listener::{Handle, Listener};

/// The relay's thread ends with the process.
#[derive(Debug)]
pub(super) struct ControlRelay {
    start: Arc<OnceLock<Instant>>,
}

impl ControlRelay {
    /// A listener of the transport on `device`, and a handle that leads to it through a relay.
    ///
    /// # Errors
    /// Those of `listen`; [`Error::Unreadable`](crate::error::Error::Unreadable) if the transport's listener is not found in its handle.
    pub(super) fn listen(
        transport: &Transport,
        device: usize,
        faults: Vec<(u64, LineFault)>,
    ) -> Result<(Handle, Listener, Self)> {
        let (handle, listener, behind) = relay::listen(transport, device)?;
        let (socket, port) = behind.listen_instead()?;
        let start = Arc::new(OnceLock::new());
        let theirs = start.clone();
        std::thread::spawn(move || pass_all(&socket, behind.port, &theirs, faults));
        Ok((behind.with_port(&handle, port), listener, Self { start }))
    }

    /// The stream begins: times count from now.
    pub(super) fn start(&self) {
        self.start.get_or_init(Instant::now);
    }
}

fn pass_all(socket: &TcpListener, port: u16, start: &OnceLock<Instant>, mut faults: Vec<(u64, LineFault)>) {
    let mut lines: Vec<Relay> = Vec::new();
    loop {
        let now = start.get().map_or(Duration::ZERO, Instant::elapsed);
        if let Some(&(at, fault)) = faults.first()
            && start.get().is_some()
            && now >= Duration::from_millis(at)
        {
            faults.remove(0);
            match fault {
                LineFault::Cut => lines.drain(..).for_each(Relay::reset),
                LineFault::Silent(time) => std::thread::sleep(Duration::from_millis(time)),
            }
        }
        if let Some(caller) = relay::accept_one(socket)
            && let Ok(line) = Relay::new(caller, port, None)
        {
            lines.push(line);
        }
        lines.retain_mut(Relay::pass);
        if lines.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
