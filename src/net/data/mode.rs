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
