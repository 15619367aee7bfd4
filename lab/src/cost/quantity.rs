//! What one message costs, out of what was counted.
//!
//! Bytes on the wire are those of RoCE v2 over IPv4 with one acknowledgement for each RDMA WRITE. Bytes on the bus are what passes
//! between the card and the memory or the processor at both ends, without the headers of the bus, with work requests and completions
//! as large as mlx5 has them. Locks are those of mlx5: one for each call that posts or polls, none where one thread alone is to do so
//! (queue pairs in a thread domain; `ibv_start_poll` on completion queues for a single thread).

use crate::cost::counted::Counted;

/// Preamble 8, Ethernet 14, IP 20, UDP 8, transport 12, checksums 4 + 4, gap 12.
const PACKET: u64 = 82;
/// Address, key and length, in the first packet of an RDMA WRITE.
const REMOTE: u64 = 16;
const IMMEDIATE: u64 = 4;
/// A packet with 4 bytes that acknowledges.
const ACKNOWLEDGEMENT: u64 = PACKET + 4;

/// What the driver writes to the card where the card fetches the work requests itself.
const DOORBELL: u64 = 8;
const RECEIVE_REQUEST: u64 = 16;
const COMPLETION: u64 = 64;

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quantity {
    /// In JSON.
    pub(crate) name: &'static str,
    /// For people.
    pub(crate) words: &'static str,
    /// The total of what was counted.
    total: fn(&Counted) -> u64,
}

/// All of them, in the order of the table.
pub(crate) const QUANTITIES: [Quantity; 13] = [
    Quantity { name: "requests", words: "send work requests", total: |c| c.requests },
    Quantity { name: "doorbells", words: "doorbells", total: |c| c.doorbells },
    Quantity { name: "inline", words: "requests with inline data", total: |c| c.inline },
    Quantity { name: "fetched", words: "requests fetched by DMA", total: |c| c.fetched },
    Quantity { name: "gathered", words: "requests whose data is read by DMA", total: |c| c.gathered },
    Quantity { name: "receives", words: "receive work requests", total: |c| c.receives },
    Quantity { name: "receive_posts", words: "calls that post receives", total: |c| c.receive_posts },
    Quantity { name: "polls", words: "polls that find completions", total: |c| c.fruitful_polls },
    Quantity { name: "empty_polls", words: "polls that find nothing", total: |c| c.polls - c.fruitful_polls },
    Quantity { name: "completions", words: "completions", total: |c| c.completions },
    Quantity { name: "wire_bytes", words: "bytes on the wire", total: wire_bytes },
    Quantity { name: "bus_bytes", words: "bytes on the bus", total: bus_bytes },
    Quantity { name: "locks", words: "locks that mlx5 takes", total: |c| c.locks },
];

impl Quantity {
    /// Of one message, of so many.
    pub(crate) fn per_message(&self, counted: &Counted, messages: u64) -> f64 {
        (self.total)(counted) as f64 / messages as f64
    }
}

fn wire_bytes(c: &Counted) -> u64 {
    c.bytes + PACKET * c.packets + REMOTE * c.messages + IMMEDIATE * c.immediates + ACKNOWLEDGEMENT * c.messages
}

fn bus_bytes(c: &Counted) -> u64 {
    // A request that is pushed is alone in its call.
    let rung = c.doorbells - (c.requests - c.fetched);
    let to_card = c.pushed_bytes + DOORBELL * rung;
    let read = c.fetched_bytes + c.gathered_bytes + RECEIVE_REQUEST * c.receives;
    to_card + read + c.bytes + COMPLETION * c.completions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, counted: &Counted) -> f64 {
        let quantity = QUANTITIES.iter().find(|quantity| quantity.name == name).expect("a quantity");
        quantity.per_message(counted, 2)
    }

    #[test]
    fn bytes_of_a_message_of_one_packet_with_a_clear_to_send() {
        // Twice: 8 bytes with an immediate, and 32 bytes inline in a chain of two.
        let counted = Counted {
            requests: 4,
            doorbells: 3,
            fetched: 2,
            fetched_bytes: 256,
            pushed_bytes: 128,
            gathered_bytes: 16,
            messages: 4,
            packets: 4,
            bytes: 2 * (8 + 32),
            immediates: 2,
            receives: 2,
            receive_posts: 1,
            polls: 6,
            fruitful_polls: 4,
            completions: 4,
            locks: 10,
            ..Counted::default()
        };
        assert_eq!(of("wire_bytes", &counted), (8 + 82 + 16 + 4 + 86 + 32 + 82 + 16 + 86) as f64);
        let cts = (256 + 8) / 2 + 32;
        let data = 64 + 8 + 8;
        assert_eq!(of("bus_bytes", &counted), (cts + data + 16 + 2 * 64) as f64);
        assert_eq!((of("locks", &counted), of("empty_polls", &counted)), (5.0, 1.0));
    }
}
