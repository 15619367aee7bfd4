//! The receiving end of a stream.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::measure::conn::TAG;
use crate::outlast::buffers::RecvBuffers;
use crate::outlast::outcome::Received;
use crate::outlast::pace::Pace;
use crate::outlast::plan::{DEPTH, StreamPlan};
use crate::transport::comm::{RecvComm, Region, Request};

/// Receives all messages in order and compares each, with [`DEPTH`] receives posted. `tell` hears of each message.
///
/// # Errors
/// Those of the transport and of `tell`; [`Error::Stalled`] past the limit.
pub(super) fn run(
    comm: &RecvComm,
    region: &Region,
    buffers: &mut RecvBuffers<'_>,
    plan: &StreamPlan,
    pace: &mut Pace,
    received: &mut Received,
    tell: &mut impl FnMut(&Received) -> Result<()>,
) -> Result<()> {
    let mut requests: [Option<Request<'_>>; DEPTH] = [const { None }; DEPTH];
    let (mut posted, mut done, mut pause) = (0_u64, 0_u64, plan.pause);
    while done < plan.messages {
        let mut moved = false;
        if posted < plan.messages && posted - done < DEPTH as u64 {
            buffers.before_post(posted, received)?;
            if let Some(request) = comm.receive(region, buffers.place(posted), plan.bytes, TAG)? {
                requests[(posted % DEPTH as u64) as usize] = Some(request);
                posted += 1;
                moved = true;
            }
        }
        let oldest = &mut requests[(done % DEPTH as u64) as usize];
        let mut size = [-1];
        if let Some(request) = oldest
            && request.test(&mut size)?
        {
            *oldest = None;
            count(received, pace.now_ms());
            buffers.arrived(done, size[0], received)?;
            done += 1;
            moved = true;
            tell(received)?;
        }
        if moved {
            pace.progress();
            continue;
        }
        if let Some((_, time)) = pause.take_if(|(message, _)| done == *message && posted - done == DEPTH as u64) {
            std::thread::sleep(Duration::from_millis(time));
        }
        if pace.idle() {
            return Err(Error::Stalled { what: format!("message {done}"), after: pace.limit() });
        }
    }
    Ok(())
}

/// One more message is complete.
fn count(received: &mut Received, now_ms: f64) {
    let gap = now_ms - received.last_ms;
    if received.messages > 0 && gap > received.longest_gap_ms {
        received.longest_gap_ms = gap;
        received.gap_at_ms = received.last_ms;
    }
    received.messages += 1;
    received.last_ms = now_ms;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_lies_between_two_messages() {
        let mut received = Received::default();
        for now in [500.0, 502.0, 540.0, 545.0] {
            count(&mut received, now);
        }
        assert_eq!((received.longest_gap_ms, received.gap_at_ms), (38.0, 502.0));
        assert_eq!((received.messages, received.last_ms), (4, 545.0));
    }
}
