//! One process that talks to itself: no second process whose pace could change what the transport
//! does. One thread makes every call in a fixed order, so that a run executes the same
//! instructions each time and two transports can be compared by counting them.

mod again;
mod connections;
mod messages;
mod wire;

use std::time::Duration;

use crate::error::Result;
use crate::host;
use crate::library::Source;
use crate::link::Deadline;
use crate::transport::Transport;
use crate::verbs::Verbs;

/// What to do, with what.
#[derive(Debug, Clone)]
pub struct Job {
    /// What to load.
    pub source: Source,
    /// Which libibverbs it has to be using.
    pub verbs: Verbs,
    /// Device index of the listener and of the sender; `None`: 0, and for the sender the second
    /// device if there is one.
    pub devices: [Option<usize>; 2],
    /// How long nothing may happen.
    pub silence: Duration,
    /// What to do.
    pub work: Work,
}

/// What the process does with its transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Send messages over one connection and check the last ones.
    Messages {
        /// The size of each.
        bytes: usize,
        /// How many.
        count: u64,
        /// How many are in flight at a time.
        depth: usize,
    },
    /// Make connections and close them.
    Connections {
        /// How many.
        count: u32,
        /// Whether all are open at once; else each is closed before the next is made.
        hold: bool,
    },
}

/// A transport that is ready, and the two devices that talk.
struct Stage {
    transport: Transport,
    listener: usize,
    sender: usize,
    silence: Duration,
}

impl Stage {
    fn deadline(&self, what: &'static str) -> Deadline {
        Deadline::new(what, self.silence)
    }
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
    pub fn run(&self) -> Result<String> {
        again::ensure(&self.verbs, self.source.net_plugin())?;
        host::raise_open_files();
        let line = self.perform();
        again::clean(&self.verbs);
        line
    }

    fn perform(&self) -> Result<String> {
        let transport = Transport::open(&self.source)?;
        let stage = Stage {
            listener: transport.device_of(0, self.devices[0])?,
            sender: transport.device_of(1, self.devices[1])?,
            silence: self.silence,
            transport,
        };
        self.verbs.prove()?;
        let result = match self.work {
            Work::Messages { bytes, count, depth } => messages::run(&stage, bytes, count, depth)?,
            Work::Connections { count, hold: false } => connections::each(&stage, count)?,
            Work::Connections { count, hold: true } => connections::all(&stage, count)?,
        };
        Ok(format!("{}: {result}", stage.transport.name()))
    }
}
