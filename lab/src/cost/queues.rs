//! The memory of a connection's queues, as drivers lay it out in user space: computed from what was asked for.
//!
//! Of each driver the sizes of rdma-core 64: mlx5 (ConnectX), bnxt_re (Broadcom, work requests of fixed size) and erdma (Alibaba).

use crate::cost::counted::{Capacities, Queues};

const PAGE: u64 = 4096;

/// A driver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Driver {
    /// Its name in rdma-core.
    pub(crate) name: &'static str,
    /// Bytes of a queue pair.
    queue_pair: fn(&Capacities) -> u64,
    /// Bytes of a completion queue of so many entries.
    completion_queue: fn(u64) -> u64,
}

/// Those whose layout is known here.
pub(crate) const DRIVERS: [Driver; 3] = [
    Driver { name: "mlx5", queue_pair: mlx5_queue_pair, completion_queue: |entries| pages(64 * power(entries + 1)) },
    Driver { name: "bnxt_re", queue_pair: bnxt_queue_pair, completion_queue: |entries| pages(32 * power(entries + 1)) },
    Driver {
        name: "erdma",
        queue_pair: erdma_queue_pair,
        completion_queue: |entries| pages(32 * power(entries.max(64))),
    },
];

impl Driver {
    /// Bytes of all these queues.
    pub(crate) fn bytes(&self, queues: &Queues) -> u64 {
        let pairs = queues.queue_pairs.iter().map(self.queue_pair);
        pairs.chain(queues.completion_queues.iter().map(|entries| (self.completion_queue)(*entries))).sum()
    }
}

fn power(count: u64) -> u64 {
    count.max(1).next_power_of_two()
}

fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE)
}

/// A send work request has room for each operation. Where they are not named, binding a memory window is the largest.
fn mlx5_queue_pair(cap: &Capacities) -> u64 {
    const BLOCK: u64 = 64;
    const ATOMIC: u64 = 0b110_0000;
    const REMOTE: u64 = 0b001_0011;
    let head = match cap.operations {
        None => 192,
        Some(operations) if operations & ATOMIC != 0 => 48,
        Some(operations) if operations & REMOTE != 0 => 32,
        Some(_) => 16,
    };
    let inline = if cap.inline == 0 { 0 } else { (4 + cap.inline).next_multiple_of(16) };
    let slot = (head + inline.max(16 * cap.send_elements)).next_multiple_of(BLOCK);
    let send = if cap.sends == 0 { 0 } else { power(cap.sends * slot) };
    let receive =
        if cap.receives == 0 { 0 } else { (power(cap.receives) * power(16 * cap.receive_elements.max(1))).max(BLOCK) };
    pages(send + receive)
}

/// 128 bytes for each work request, and 16 for each send to find it by its packet number. So many sends are kept free.
fn bnxt_queue_pair(cap: &Capacities) -> u64 {
    const SLOT: u64 = 128;
    const FREE: u64 = 128;
    pages(power(cap.sends + 1 + FREE) * (SLOT + 16)) + pages(power(cap.receives + 1) * SLOT)
}

fn erdma_queue_pair(cap: &Capacities) -> u64 {
    pages(power(4 * cap.sends) * 32) + pages(power(cap.receives) * 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(name: &str, sends: u64, receives: u64, inline: u64, entries: u64) -> u64 {
        let driver = DRIVERS.iter().find(|driver| driver.name == name).expect("it is known");
        let pair = Capacities { sends, receives, send_elements: 1, receive_elements: 1, inline, operations: None };
        driver.bytes(&Queues { queue_pairs: vec![pair], completion_queues: vec![entries] })
    }

    #[test]
    fn an_end_of_the_built_in_transport_takes_196_kib_of_mlx5() {
        assert_eq!(bytes("mlx5", 512, 256, 0, 512), (128 + 4 + 64) << 10);
    }

    #[test]
    fn inline_data_makes_slots_larger_where_it_does_not_fit() {
        assert_eq!(bytes("mlx5", 128, 0, 60, 63), (128 * 256) + 4096);
        assert_eq!(bytes("mlx5", 128, 0, 61, 63), power(128 * 320) + 4096);
    }

    #[test]
    fn queue_pairs_for_writes_alone_have_slots_of_64_bytes() {
        let pair = Capacities { sends: 256, send_elements: 1, operations: Some(0b11), ..Capacities::default() };
        assert_eq!(mlx5_queue_pair(&pair), 256 * 64);
        assert_eq!(mlx5_queue_pair(&Capacities { inline: 192, ..pair }), 256 * 256, "6 clear-to-sends of 32 bytes");
    }

    #[test]
    fn queues_of_other_drivers() {
        assert_eq!(bytes("bnxt_re", 512, 256, 0, 512), 1024 * 144 + 512 * 128 + 1024 * 32);
        assert_eq!(bytes("erdma", 512, 256, 0, 512), 512 * 128 + 256 * 32 + 512 * 32);
    }
}
