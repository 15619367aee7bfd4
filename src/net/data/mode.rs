//! What an end of a connection can do while the connection recovers.

/// The mode of one end's data path. While it is not [`Mode::Running`], the peer's state is not open, and NCCL's calls look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The queue pairs are there.
    Running,
    /// The queue pairs are there. No new message is begun, and those that have begun go on.
    Draining,
    /// Receiver: the queue pairs are being destroyed, and what has arrived on them is not taken in yet. There are none to post on or to poll.
    Fencing,
    /// There are no queue pairs.
    Fenced,
    /// There are new queue pairs. Some of the messages that have to be sent again have not been posted yet.
    Replaying,
}

impl Mode {
    /// Whether a test has to wait until what has arrived is taken in, although the peer may have closed. Where the connection `is_broken`, since
    /// the peer has died or given up or the device is lost, nothing will be taken in.
    pub fn waits_for_arrivals(self, is_broken: bool) -> bool {
        self == Self::Fencing && !is_broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrived_before_the_peer_has_closed_is_waited_for_unless_the_connection_is_broken() {
        let waits = |is_broken| {
            [Mode::Running, Mode::Draining, Mode::Fencing, Mode::Fenced, Mode::Replaying]
                .map(|mode| mode.waits_for_arrivals(is_broken))
        };
        assert_eq!(waits(false), [false, false, true, false, false]);
        assert_eq!(waits(true), [false; 5]);
    }
}
