//! Room in the send queues of a connection, counted in work requests.
//!
//! A stripe takes one to three work requests of its lane's queue: the data, with the notice or without; the notice, where it goes
//! apart; the second half of a length that one immediate cannot tell. The last of them reports its completion, and with it
//! that of the others.
//!
//! No queue overflows. At most [`MAX_REQUESTS`] messages are outstanding, each with at most one stripe on a lane, and a message
//! stays outstanding until the completions of all its stripes have been polled. So the *first* work requests of all stripes take
//! no more than that many entries of a lane's queue. The *further* ones, of which most stripes have none, are counted here, lane by
//! lane, and get as many entries again but one, which is kept for a probe that may still be under way when messages begin again.
//! [`SEND_QUEUE_DEPTH`] is the sum.

use super::{Lane, MAX_LANES, MAX_REQUESTS};

/// Work requests that the send queue of a lane has to take.
pub const SEND_QUEUE_DEPTH: u32 = 2 * MAX_REQUESTS as u32;
/// Most work requests of one stripe.
pub const STRIPE_REQUESTS_MAX: usize = 3;

/// Further work requests that a lane's queue has room for.
const FURTHER_MAX: u16 = SEND_QUEUE_DEPTH as u16 - MAX_REQUESTS as u16 - 1;

/// How many further work requests are outstanding, by lane.
#[derive(Debug)]
pub struct Room {
    further: [u16; MAX_LANES],
    most: u16,
}

impl Default for Room {
    fn default() -> Self {
        Self::new(FURTHER_MAX)
    }
}

impl Room {
    /// Room for `most` further work requests on each lane, of which a stripe may take two.
    pub(super) fn new(most: u16) -> Self {
        Self { further: [0; MAX_LANES], most }
    }

    /// Whether each of the first `lanes` lanes has room for a stripe with up to `further` further work requests.
    #[inline]
    pub fn admits(&self, lanes: usize, further: u8) -> bool {
        self.further.iter().take(lanes).all(|outstanding| outstanding + u16::from(further) <= self.most)
    }

    /// A stripe with so many further work requests has been posted on `lane`, which had room for it.
    #[inline]
    pub fn handle_posted(&mut self, lane: Lane, further: u8) {
        self.further[usize::from(lane.0) % MAX_LANES] += u16::from(further);
    }

    /// The completion of such a stripe has been polled.
    #[inline]
    pub fn handle_completion(&mut self, lane: Lane, further: u8) {
        let outstanding = &mut self.further[usize::from(lane.0) % MAX_LANES];
        *outstanding = outstanding.saturating_sub(further.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many stripes with `further` further work requests fit beside each other on lane 1.
    fn fit(further: u8) -> u32 {
        let mut room = Room::default();
        let mut count = 0;
        while room.admits(2, further) && count < MAX_REQUESTS as u32 {
            room.handle_posted(Lane(1), further);
            count += 1;
        }
        // The most that the lane's queue holds then: all first ones, these further ones, a probe.
        assert!(MAX_REQUESTS as u32 + count * u32::from(further) < SEND_QUEUE_DEPTH);
        if count < MAX_REQUESTS as u32 {
            assert!(room.admits(1, further), "the other lane is empty");
            room.handle_completion(Lane(1), further);
            assert!(room.admits(2, further), "one has been completed");
        }
        count
    }

    #[test]
    fn all_messages_but_one_fit_that_have_two_work_requests_and_half_of_those_that_have_three() {
        assert_eq!([0, 1, 2].map(fit), [256, 255, 127]);
    }
}
