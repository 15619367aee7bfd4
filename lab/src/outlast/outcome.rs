//! What happened in a run: at each end, to the messages, to the bytes.

use serde::{Deserialize, Serialize};

/// How one end came out of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub(crate) enum End {
    /// With all of its messages.
    Finished,
    /// A call returned an error.
    Error {
        /// The call.
        call: String,
        /// Its `ncclResult_t`.
        code: u32,
        /// The transport's last warning.
        text: String,
    },
    /// No message completed for the limit.
    Hang {
        /// What it was waiting for.
        text: String,
    },
    /// The script killed the process.
    Killed,
    /// The process died by itself.
    Died {
        /// Its exit status.
        text: String,
    },
}

/// [`End`], and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndAt {
    /// How.
    #[serde(flatten)]
    pub(crate) end: End,
    /// After the start of the stream; ms.
    pub(crate) at_ms: u64,
}

/// What the receiver has seen of the messages.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Received {
    /// Messages completed.
    pub(crate) messages: u64,
    /// When the last of them was; ms after the start.
    pub(crate) last_ms: f64,
    /// The longest time between two of them; ms.
    pub(crate) longest_gap_ms: f64,
    /// When that gap began; ms after the start.
    pub(crate) gap_at_ms: f64,
    /// Bytes of completed messages that were not what had been sent, and bytes written beside a message.
    pub(crate) wrong_on_arrival: u64,
    /// Bytes of buffers that changed after their message had completed.
    pub(crate) wrong_later: u64,
    /// Messages that came with another size than they were sent with.
    pub(crate) wrong_sizes: u64,
    /// The first things that were wrong, in words.
    pub(crate) notes: Vec<String>,
}

impl Received {
    /// All wrong bytes; a wrong size counts as one.
    pub(crate) fn wrong_bytes(&self) -> u64 {
        self.wrong_on_arrival + self.wrong_later + self.wrong_sizes
    }
}

/// What a worker process reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(crate) enum Report {
    /// The transport is there and the connection stands; the stream begins.
    Started {
        /// The transport's name and version, such as `IB 2.30.7`.
        transport: String,
        /// The name of this rank's device.
        device: String,
    },
    /// The receiver is so far.
    Progress(Received),
    /// This end has come to its end, and looked at all of its buffers again.
    Ended {
        /// How.
        end: EndAt,
        /// Of the receiver.
        received: Option<Received>,
    },
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The version of this program, with the commit; empty in files of before there was this.
    #[serde(default)]
    pub(crate) tool: String,
    /// The command line.
    pub(crate) command: String,
    /// The scenario, or `own`.
    pub(crate) scenario: String,
    /// What was loaded, such as `IB 2.30.7`, and with which switches.
    pub(crate) side: String,
    /// Which repetition, from 1.
    pub(crate) repetition: u32,
    /// Seed of the software device's and the script's random decisions.
    pub(crate) seed: u64,
    /// Devices of both ranks.
    pub(crate) devices: [String; 2],
    /// What was done when, as it happened.
    pub(crate) script: Vec<String>,
    /// The sender's and the receiver's end.
    pub(crate) ends: [EndAt; 2],
    /// Messages planned, and the size of each.
    pub(crate) planned: (u64, usize),
    /// What the receiver saw.
    pub(crate) received: Received,
    /// Bytes of messages completed.
    pub(crate) payload_bytes: u64,
    /// Bytes that the sender's ports sent and that were acknowledged; none if the device was gone before it was asked.
    pub(crate) sent_bytes: Option<u64>,
    /// Those beyond the payload, if all messages have completed.
    pub(crate) resent_bytes: Option<u64>,
    /// Transmissions of either side that got no answer.
    pub(crate) lost_transmissions: Option<u64>,
    /// As the transport's log tells, of the end that tells more; none for a transport whose words are not known.
    pub(crate) recoveries: Option<u64>,
    /// The same for failures that the transport went on after.
    pub(crate) failures: Option<u64>,
    /// How long it all took; s.
    pub(crate) seconds: f64,
}

impl Outcome {
    /// Whether every message arrived, with both ends at their end and nothing wrong.
    pub(crate) fn is_finished(&self) -> bool {
        self.ends.iter().all(|end| end.end == End::Finished) && self.received.wrong_bytes() == 0
    }
}
