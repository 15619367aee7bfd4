//! A process of this host that stands for rank 1 on another one: its parent sees what it would see of rank 1 itself. Its peer's socket is
//! the connection to the program that has started rank 1 there.

use std::net::TcpStream;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::hosts::line_conn::LineConn;
use crate::pair::host_end::Heard;
use crate::pair::message::WorkerMessage;
use crate::pair::worker_ctx::WorkerCtx;
use crate::system::output;

/// The hidden subcommand that makes one of this program.
pub(crate) const STAND_IN: &str = "stand-in";

const SEND: Duration = Duration::from_secs(10);
/// The parent gives rank 1 up earlier.
const SILENCE: Duration = Duration::from_secs(2 * 3600);

/// The body of the hidden subcommand; the exit code.
pub(crate) fn main() -> i32 {
    WorkerCtx::main(STAND_IN, stand_in)
}

fn stand_in(worker: &mut WorkerCtx) -> Result<()> {
    let mut conn = LineConn::new(TcpStream::from(worker.peer()?));
    let other_host = |why: String| Error::Unreadable(format!("the other host: {why}"));
    let job: serde_json::Value = worker.receive_job()?;
    conn.send(&job, SEND).map_err(other_host)?;
    let (mut doing, mut is_done) = (String::from("starting"), false);
    loop {
        match conn.receive::<Heard>(SILENCE).map_err(other_host)? {
            Heard::Said(WorkerMessage::Done) => is_done = true,
            Heard::Said(failed @ WorkerMessage::Failed { .. }) => {
                worker.send_message(&failed)?;
                is_done = true;
            }
            Heard::Said(message) => {
                if let WorkerMessage::Begin { what } = &message {
                    doing.clone_from(what);
                }
                worker.send_message(&message)?;
            }
            Heard::Ended { failure, log } => {
                log.iter().for_each(|line| output::write_stderr(format_args!("{line}")));
                return match failure {
                    Some(failure) if !is_done => {
                        Err(Error::Unreadable(format!("{failure} on the other host while {doing}")))
                    }
                    None if !is_done => Err(Error::Unreadable("it has ended before it was done".into())),
                    _ => Ok(()),
                };
            }
        }
    }
}
