//! When a lane is given another path: when it has stayed slow while the others have not.
//!
//! A lane's weight follows what it completes, and weights say only how lanes compare: if all of them slow down together, since the
//! receiver is slow or the job pauses, no weight changes, and no lane moves.

/// Messages of a connection between two looks at its weights: enough for a weight to fall to a third.
const LOOK_EVERY: u64 = 128;
/// A lane whose weight is below this share of the mean of the others is slow.
const SLOW: f64 = 0.75;
/// So many looks in a row have to find a lane slow.
const LOOKS: u8 = 3;

/// The lanes of a connection, as far as moves are concerned.
#[derive(Debug, Clone)]
pub(super) struct Moves {
    /// By lane, how many looks in a row have found it slow.
    slow: Vec<u8>,
    next_look: u64,
}

impl Moves {
    pub(super) fn new(lanes: usize) -> Self {
        Self { slow: vec![0; lanes], next_look: LOOK_EVERY }
    }

    /// So many messages of the connection are complete; `weight` returns the weight of a lane. Returns a lane that is to be given
    /// another path, the slowest one, if one has been slow for long enough.
    pub(super) fn poll(&mut self, completed: u64, weight: impl Fn(usize) -> u64) -> Option<usize> {
        if completed < self.next_look || self.slow.len() < 2 {
            return None;
        }
        self.next_look = completed + LOOK_EVERY;
        let sum: u64 = (0..self.slow.len()).map(&weight).sum();
        let others = (self.slow.len() - 1) as f64;
        for (lane, slow) in self.slow.iter_mut().enumerate() {
            let mean = (sum - weight(lane)) as f64 / others;
            *slow = if (weight(lane) as f64) < SLOW * mean { *slow + 1 } else { 0 };
        }
        let due = (0..self.slow.len()).filter(|lane| self.slow[*lane] >= LOOKS);
        let slowest = due.min_by_key(|lane| weight(*lane))?;
        self.slow.fill(0);
        Some(slowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lanes that move while so many messages complete at these weights.
    fn moved(weights: &[u64], messages: u64) -> Vec<usize> {
        let mut moves = Moves::new(weights.len());
        (0..messages).filter_map(|completed| moves.poll(completed, |lane| weights[lane])).collect()
    }

    #[test]
    fn a_lane_that_stays_slow_moves_and_the_slowest_first() {
        assert_eq!(moved(&[100, 30, 20, 100], LOOK_EVERY * 3 + 1), [2]);
        assert_eq!(moved(&[100, 30, 20, 100], LOOK_EVERY * 2 + 1), [0; 0], "not for long enough");
    }

    #[test]
    fn no_lane_moves_if_all_are_alike_or_there_is_one() {
        assert_eq!(moved(&[10, 10, 9, 10], 10_000), [0; 0]);
        assert_eq!(moved(&[10], 10_000), [0; 0]);
    }

    #[test]
    fn a_lane_that_is_slow_now_and_then_does_not_move() {
        let mut moves = Moves::new(2);
        for completed in 0..10_000 {
            let is_slow = !(completed / LOOK_EVERY).is_multiple_of(LOOKS.into());
            assert_eq!(moves.poll(completed, |lane| if lane == 1 && is_slow { 20 } else { 100 }), None);
        }
    }
}
