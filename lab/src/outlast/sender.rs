//! The sending end of a stream.

use crate::error::{Error, Result};
use crate::measure::conn::TAG;
use crate::measure::pattern;
use crate::outlast::buffers::message_seed;
use crate::outlast::pace::Pace;
use crate::outlast::plan::{DEPTH, StreamPlan};
use crate::transport::comm::{Region, Request, SendComm};

/// What a source buffer holds while no message is in it: a device that reads it then sends wrong bytes.
const USED: u8 = 0x5c;

/// Bytes of memory that the messages are sent from.
pub(super) fn memory_needed(bytes: usize) -> usize {
    DEPTH * stride(bytes)
}

fn stride(bytes: usize) -> usize {
    bytes.next_multiple_of(4096).max(4096)
}

/// Sends all messages in order, with up to [`DEPTH`] in flight.
///
/// # Errors
/// Those of the transport; [`Error::Stalled`] past the limit.
pub(super) fn run(comm: &SendComm, region: &Region, plan: &StreamPlan, pace: &mut Pace) -> Result<()> {
    let mut requests: [Option<Request<'_>>; DEPTH] = [const { None }; DEPTH];
    let (mut prepared, mut posted, mut done) = (0_u64, 0_u64, 0_u64);
    let place = |index: u64| (index % DEPTH as u64) as usize * stride(plan.bytes);
    while done < plan.messages {
        let mut moved = false;
        if posted < plan.messages && posted - done < DEPTH as u64 && pace.is_past(posted * plan.period_us) {
            if prepared == posted {
                pattern::fill(region.memory(), place(posted), plan.bytes, message_seed(posted))?;
                prepared += 1;
            }
            if let Some(request) = comm.send(region, place(posted), plan.bytes, TAG)? {
                requests[(posted % DEPTH as u64) as usize] = Some(request);
                posted += 1;
                moved = true;
            }
        }
        let oldest = &mut requests[(done % DEPTH as u64) as usize];
        if let Some(request) = oldest
            && request.test(&mut [0])?
        {
            *oldest = None;
            region.memory().set(place(done), plan.bytes, USED)?;
            done += 1;
            moved = true;
        }
        if moved || posted == done && posted < plan.messages && !pace.is_past(posted * plan.period_us) {
            pace.progress();
        }
        if !moved && pace.idle() {
            let what = if posted == done { "a receive of the peer" } else { "the completion of a send" };
            return Err(Error::Stalled { what: format!("message {done}: {what}"), after: pace.limit() });
        }
    }
    Ok(())
}
