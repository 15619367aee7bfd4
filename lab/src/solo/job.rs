//! What `ferrite solo` does.

use std::time::Duration;

use crate::error::Result;
use crate::nccl::library::Source;
use crate::solo::endpoints::Endpoints;
use crate::solo::in_vain::InVain;
use crate::solo::{connections, messages, reexec};
use crate::system::host;
use crate::transport::instance::Transport;
use crate::verbs::libibverbs::Verbs;

/// What to do, with what.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// What to load.
    pub(crate) source: Source,
    /// Which libibverbs it has to be using.
    pub(crate) verbs: Verbs,
    /// Device index of the listener and of the sender; `None`: 0, and for the sender the second
    /// device if there is one.
    pub(crate) devices: [Option<usize>; 2],
    /// How long nothing may happen.
    pub(crate) silence: Duration,
    /// What to do.
    pub(crate) work: Work,
}

/// What the process does with its transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Send messages over one connection and check the last ones.
    Messages {
        /// The size of each.
        bytes: usize,
        /// How many.
        count: u64,
        /// How many are in flight at a time.
        depth: usize,
        /// Calls of each round that find nothing.
        in_vain: InVain,
    },
    /// Make connections and close them.
    Connections {
        /// How many.
        count: u32,
        /// Whether all are open at once; else each is closed before the next is made.
        hold: bool,
    },
}

impl Job {
    /// Does it, and returns the result in one line. Replaces the process by itself with the
    /// environment that workers get, since the loader reads its part at the start: whatever the
    /// caller did before is done a second time.
    ///
    /// # Errors
    /// Those of the transport; [`crate::error::Error::Refused`] if it uses another libibverbs;
    /// [`crate::error::Error::Data`] if a message is wrong; [`crate::error::Error::Stalled`];
    /// [`crate::error::Error::Io`] if the process cannot be replaced.
    pub(crate) fn run(&self) -> Result<String> {
        reexec::ensure_environment(&self.verbs, self.source.net_plugin())?;
        host::raise_open_files();
        let line = self.perform();
        reexec::clean(&self.verbs);
        line
    }

    fn perform(&self) -> Result<String> {
        let transport = Transport::open(&self.source)?;
        let endpoints = Endpoints {
            listener: transport.device_of(0, self.devices[0])?,
            sender: transport.device_of(1, self.devices[1])?,
            silence: self.silence,
            transport,
        };
        self.verbs.prove()?;
        let result = match self.work {
            Work::Messages { bytes, count, depth, in_vain } => messages::run(&endpoints, bytes, count, depth, in_vain)?,
            Work::Connections { count, hold: false } => connections::each(&endpoints, count)?,
            Work::Connections { count, hold: true } => connections::all(&endpoints, count)?,
        };
        Ok(format!("{}: {result}", endpoints.transport.name()))
    }
}
