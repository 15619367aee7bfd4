//! Each device of the plugin sends a message to itself, through the plugin's own table of functions: listen, connect, accept,
//! one message of 1 MiB whose bytes are checked. In a process of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use lab::error::{Error, Result};
use lab::measure::pattern;
use lab::nccl::debug_log;
use lab::nccl::library::Source;
use lab::system::output;
use lab::transport::buffer::Buffer;
use lab::transport::deadline::{Deadline, posted};
use lab::transport::instance::Transport;
use lab::transport::local_conn::LocalConn;

/// Bytes of the message.
const BYTES: usize = 1 << 20;
/// Each step may take so long.
const STEP: Duration = Duration::from_secs(10);

/// The settings under which the plugin is tried. A device that does not answer fails soon, and by itself: each port is a device
/// of its own, nothing is recovered, and no file of statistics or reports is made.
pub(crate) const SETTINGS: [(&str, &str); 7] = [
    ("NCCL_DEBUG", "WARN"),
    ("NCCL_IB_MERGE_NICS", "0"),
    ("NCCL_IB_TIMEOUT", "14"),
    ("NCCL_IB_RETRY_CNT", "5"),
    ("FERRITE_FAILOVER", "0"),
    ("FERRITE_STATS", "0"),
    ("FERRITE_HANG_SECONDS", "0"),
];

/// How it went on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoopbackFacts {
    /// The device's name; empty where the plugin could not be started.
    pub(crate) device: String,
    /// What connecting took, in milliseconds; or the error, with the plugin's own last warning.
    pub(crate) result: std::result::Result<f64, String>,
}

/// What the hidden subcommand does: prints a line of JSON for each device of the plugin at `path`.
pub(crate) fn main(path: &Path) -> i32 {
    let transport = Transport::open(&Source::plugin(path));
    let devices = transport.and_then(|transport| transport.devices().map(|count| (transport, count)));
    match devices {
        Err(problem) => print(String::new(), Err(with_warning(&problem))),
        Ok((transport, count)) => {
            let mut code = 0;
            for device in 0..count {
                let name = transport
                    .properties(device)
                    // A device of one port has no number in its name; NCCL's number of the port counts across the card's functions.
                    .map_or_else(|_| device.to_string(), |p| if p.name.contains(':') { p.name } else { p.name + ":1" });
                let result = try_device(&transport, device).map_err(|problem| with_warning(&problem));
                code = code.max(print(name, result));
            }
            code
        }
    }
}

fn print(device: String, result: std::result::Result<f64, String>) -> i32 {
    let line = serde_json::to_string(&LoopbackFacts { device, result }).unwrap_or_default();
    i32::from(output::write_stdout(&format!("{line}\n")).is_err())
}

/// The error, and what the plugin has said last.
fn with_warning(problem: &Error) -> String {
    let warning = debug_log::lines().into_iter().rev().find(|line| line.starts_with("WARN"));
    warning.map_or_else(|| problem.to_string(), |warning| format!("{problem}; the plugin: {}", said(&warning)))
}

/// A warning without its level and the place in the plugin's sources.
fn said(line: &str) -> &str {
    line.split_once("Ferrite: ").map_or(line, |(_, words)| words)
}

/// Milliseconds that connecting took.
fn try_device(transport: &Transport, device: usize) -> Result<f64> {
    let start = Instant::now();
    let LocalConn { send, recv } =
        LocalConn::open(transport, device, device, &mut Deadline::new("connecting the device to itself", STEP))?;
    let connected = start.elapsed().as_secs_f64() * 1e3;
    let [out, into] = [Arc::new(Buffer::new(BYTES)?), Arc::new(Buffer::new(BYTES)?)];
    let seed = pattern::seed(0, 0, device as u64);
    pattern::fill(&out, 0, BYTES, seed)?;
    let (from, to) = (send.register(&out)?, recv.register(&into)?);
    let mut deadline = Deadline::new("a message of 1 MiB to itself", STEP);
    let mut received = posted(&mut deadline, || recv.receive(&to, 0, BYTES, 0))?;
    let (mut sent, mut is_sent, mut has_arrived, mut sizes) = (None, false, false, [0; 1]);
    // Both ends in turn: the receiver's failure shows in its own request, while the sender has nothing to send to.
    while !(is_sent && has_arrived) {
        has_arrived = has_arrived || received.test(&mut sizes)?;
        match sent.as_mut() {
            None => sent = send.send(&from, 0, BYTES, 0)?,
            Some(_) if is_sent => {}
            Some(request) => is_sent = request.test(&mut sizes)?,
        }
        deadline.idle()?;
    }
    drop((sent, received));
    if let Some(at) = pattern::check(&into, 0, BYTES, seed)? {
        return Err(Error::Data(format!("byte {} of 1 MiB is wrong", at.offset)));
    }
    drop((from, to));
    LocalConn { send, recv }.close()?;
    Ok(connected)
}
