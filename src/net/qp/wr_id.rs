//! Work request ids.

use crate::proto::requests::RequestId;

/// The id of a work request, which its completion returns: what it was posted for.
///
/// ```text
/// bit 63      56 55     48 47     40 39    32 31        0
///      kind      zero      extra     QP      request
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrId {
    /// A stripe of a message, in one write.
    Data {
        /// The message.
        request: RequestId,
        /// The queue pair's index.
        qp: u8,
    },
    /// A stripe of a message, in more than one write.
    LongData {
        /// The message.
        request: RequestId,
        /// The queue pair's index.
        qp: u8,
        /// Writes after the first.
        extra: u8,
    },
    /// A write of clear-to-sends.
    Cts {
        /// The queue pair's index.
        qp: u8,
    },
    /// A receive work request.
    Receive {
        /// The queue pair's index.
        qp: u8,
    },
    /// A flush of GPU memory.
    Flush {
        /// The flush.
        request: RequestId,
    },
    /// A write of zero bytes that checks whether the peer's device acknowledges.
    Probe {
        /// The queue pair's index.
        qp: u8,
    },
}

impl WrId {
    /// The id as 64 bits.
    #[inline(always)]
    pub fn to_bits(self) -> u64 {
        let (kind, extra, qp, request) = match self {
            Self::Data { request, qp } => (0, 0, qp, request.to_bits()),
            Self::Cts { qp } => (1, 0, qp, 0),
            Self::Receive { qp } => (2, 0, qp, 0),
            Self::Flush { request } => (3, 0, 0, request.to_bits()),
            Self::LongData { request, qp, extra } => (4, extra, qp, request.to_bits()),
            Self::Probe { qp } => (5, 0, qp, 0),
        };
        kind << 56 | u64::from(extra) << 40 | u64::from(qp) << 32 | u64::from(request)
    }

    /// The id that `bits` encode. Devices return ids unchanged, so every value comes from
    /// [`Self::to_bits`].
    #[inline(always)]
    pub fn from_bits(bits: u64) -> Self {
        let (qp, request) = ((bits >> 32) as u8, RequestId::from_bits(bits as u32));
        match bits >> 56 {
            0 => Self::Data { request, qp },
            1 => Self::Cts { qp },
            2 => Self::Receive { qp },
            3 => Self::Flush { request },
            4 => Self::LongData { request, qp, extra: (bits >> 40) as u8 },
            _ => Self::Probe { qp },
        }
    }

    /// The queue pair's index.
    pub fn qp(self) -> u8 {
        match self {
            Self::Data { qp, .. }
            | Self::LongData { qp, .. }
            | Self::Cts { qp }
            | Self::Receive { qp }
            | Self::Probe { qp } => qp,
            Self::Flush { .. } => 0,
        }
    }

    /// The operation, for messages.
    pub(super) fn operation(self) -> &'static str {
        match self {
            Self::Data { .. } | Self::LongData { .. } => "sending data",
            Self::Cts { .. } => "sending a clear-to-send",
            Self::Receive { .. } => "receiving",
            Self::Flush { .. } => "flushing GPU memory",
            Self::Probe { .. } => "probing the peer",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_request_id_survives_encoding() {
        let request = RequestId::from_bits(0xabcd_ef12);
        for id in [
            WrId::Data { request, qp: 31 },
            WrId::LongData { request, qp: 31, extra: 2 },
            WrId::Cts { qp: 2 },
            WrId::Receive { qp: 7 },
            WrId::Flush { request },
            WrId::Probe { qp: 3 },
        ] {
            assert_eq!(WrId::from_bits(id.to_bits()), id);
        }
    }
}
