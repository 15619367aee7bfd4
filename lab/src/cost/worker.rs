//! The process that sends to itself and asks the software device what it has counted.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cost::case::Case;
use crate::cost::counted::{Counted, Queues, Seen};
use crate::error::{Error, Result};
use crate::nccl::library::{Identity, Source};
use crate::pair::message::{json_error, to_json};
use crate::solo::endpoints::Endpoints;
use crate::solo::messages::Path;
use crate::system::{host, output};
use crate::transport::fused;
use crate::transport::instance::Transport;
use crate::verbs::libibverbs::Verbs;

/// The hidden subcommand that makes a worker of this program.
pub(crate) const WORKER: &str = "cost-worker";
/// Rounds before anything is counted: queues and what is learnt of rails have settled.
const WARM_UP: u64 = 64;
/// Which test the contents of messages are of.
const CONTENTS: u64 = 900;

/// What a worker does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CostJob {
    pub(crate) source: Source,
    pub(crate) verbs: Verbs,
    pub(crate) case: Case,
    /// Rounds that are counted, of as many messages as are in flight.
    pub(crate) rounds: u64,
    /// The software device's command line, and the name of its fabric.
    pub(crate) control: PathBuf,
    pub(crate) fabric: String,
    /// How long nothing may happen; s.
    pub(crate) silence: u64,
}

/// What a worker has found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CostReport {
    pub(crate) identity: Identity,
    /// Messages that were counted.
    pub(crate) messages: u64,
    pub(crate) counted: Counted,
    pub(crate) queues: Queues,
    /// Commands to the card's firmware that the connection took, with the registration of one buffer at each end.
    pub(crate) commands: u64,
}

/// Does the job that is written in `text`, and prints what it has found.
///
/// # Errors
/// Those of the transport; [`Error::Unreadable`] if the device's counts are not understood; [`Error::Data`] if a message is wrong.
pub(crate) fn main(text: &str) -> Result<()> {
    let job: CostJob = serde_json::from_str(text).map_err(|e| json_error(&e))?;
    host::raise_open_files();
    let report = job.perform()?;
    output::write_stdout(&format!("{}\n", to_json(&report)?))
}

impl CostJob {
    fn perform(&self) -> Result<CostReport> {
        let Case { bytes, depth, rails, .. } = self.case;
        let transport = Transport::open(&self.source)?;
        let device = |rank: usize| match rails {
            1 => transport.device_of(rank, None),
            _ => fused::device_of(&transport, rank),
        };
        let (listener, sender) = (device(0)?, device(1)?);
        let identity = transport.identity().clone();
        self.verbs.prove()?;
        let endpoints = Endpoints { listener, sender, silence: Duration::from_secs(self.silence), transport };
        // What a process needs once is there before anything is counted.
        endpoints.connect()?.close()?;
        let commands_before = self.commands()?;
        let conn = endpoints.connect()?;
        let mut path = Path::new(&endpoints, &conn, bytes, depth)?;
        let commands = self.commands()? - commands_before;
        (0..WARM_UP).try_for_each(|_| path.round(depth))?;
        let before = self.seen()?;
        (0..self.rounds).try_for_each(|_| path.round(depth))?;
        let after = self.seen()?;
        path.fill(CONTENTS)?;
        path.round(depth)?;
        path.check(CONTENTS, depth)?;
        drop(path);
        conn.close()?;
        Ok(CostReport {
            identity,
            messages: self.rounds * depth as u64,
            counted: after.counted.since(&before.counted),
            queues: after.queues,
            commands,
        })
    }

    fn commands(&self) -> Result<u64> {
        Ok(self.seen()?.commands.values().sum())
    }

    /// What the device says of this process.
    fn seen(&self) -> Result<Seen> {
        let output = Command::new(&self.control)
            .args(["--fabric", &self.fabric, "stat", "--json"])
            .output()
            .map_err(|source| Error::io(format!("cannot start {}", self.control.display()), source))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Refused(format!("the software device: {words}")));
        }
        Seen::parse(&String::from_utf8_lossy(&output.stdout), std::process::id())
    }
}
