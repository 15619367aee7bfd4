//! Every number that the model uses, with where it comes from.
//!
//! Measured ones are of the software device, with one process that sends to itself, over NCCL 2.21.5's built-in transport and over
//! Ferrite. A connection has two ends, which are two processes' in a job: figures of both ends count half for each.

use serde::Serialize;

/// A number of each transport.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Constant {
    /// What it is, with its unit.
    pub(crate) what: &'static str,
    /// Of the built-in transport.
    pub(crate) stock: f64,
    /// Of Ferrite.
    pub(crate) ferrite: f64,
    /// Counted, measured or assumed, and by what.
    pub(crate) source: &'static str,
}

const COUNTED: &str = "counted: `ferrite cost --queue-pairs 1,4`";
const DESCRIPTORS: &str = "counted: /proc/PID/fd during `ferrite solo --connections 700 --hold`, `SOFTRNIC_DEVICES=8`";

/// Queue pairs of an end for each queue pair of its connection.
pub(crate) const QUEUE_PAIRS: Constant = Constant {
    what: "queue pairs of an end, for each of NCCL_IB_QPS_PER_CONNECTION",
    stock: 1.0,
    ferrite: 1.0,
    source: COUNTED,
};
/// Queue pairs for flushes of a receiving end, where there is GPUDirect RDMA.
pub(crate) const FLUSH_QUEUE_PAIRS: Constant = Constant {
    what: "queue pairs for flushes of a receiving end",
    stock: 1.0,
    ferrite: 0.0,
    source: "assumed, read in NCCL 2.21.5: made wherever GPUDirect RDMA is used. Ferrite makes its own at the first flush, which GPUs from \
             compute capability 9.0 on never ask for",
};
/// Memory of the queues of both ends for each queue pair, as mlx5 lays them out; KiB.
pub(crate) const QUEUE_KIB: Constant = Constant {
    what: "queues of both ends, mlx5, for each queue pair; KiB",
    stock: 392.0,
    ferrite: 124.0,
    source: COUNTED,
};
/// Memory of a queue pair for flushes, as mlx5 lays it out; KiB.
pub(crate) const FLUSH_KIB: Constant = Constant {
    what: "queues of a queue pair for flushes, mlx5; KiB",
    stock: 132.0,
    ferrite: 0.0,
    source: "assumed: computed from the depths of the others, 512 and 256; the completion queue is shared",
};
/// Host memory that the transport registers for both ends; bytes.
pub(crate) const REGISTERED_BYTES: Constant = Constant {
    what: "host memory that the transport registers for both ends; bytes",
    stock: 278_528.0,
    ferrite: 16_384.0,
    source: "measured: `SOFTRNIC_STAT=1 ferrite solo --connections 1001 --hold`",
};
/// Commands that a card carries out for both ends, however many queue pairs they have.
pub(crate) const COMMANDS: Constant = Constant {
    what: "commands of both ends: completion queues and the transport's memory regions",
    stock: 6.0,
    ferrite: 3.0,
    source: "counted: objects in `SOFTRNIC_STAT=1 ferrite solo --connections 1001 --hold`",
};
/// Commands that a card carries out for the two queue pairs at both ends.
pub(crate) const QUEUE_PAIR_COMMANDS: Constant = Constant {
    what: "commands of both ends for each queue pair: creation, INIT, RTR, RTS",
    stock: 8.0,
    ferrite: 8.0,
    source: "counted: `ferrite cost --queue-pairs 1,4`; with `SOFTRNIC_COMMAND_US=4000` a connection takes 14.2 and 11.2 times 3,000 us more than with 1000",
};
/// Commands for a queue pair for flushes: creation, three changes of state, and its memory region.
pub(crate) const FLUSH_COMMANDS: Constant = Constant {
    what: "commands for a queue pair for flushes",
    stock: 5.0,
    ferrite: 0.0,
    source: "assumed, read in NCCL 2.21.5: creation, INIT, RTR, RTS, and a memory region",
};
/// Processor time of both ends from `listen` to `close`, that of the software device included; us.
pub(crate) const CPU_US: Constant = Constant {
    what: "processor time of both ends, software device and closing included; us",
    stock: 640.0,
    ferrite: 320.0,
    source: "measured: user and system time of `ferrite solo --connections N --hold`, N = 1,200 less N = 200, median of 4 runs, a busy \
             machine with 2 cores",
};
/// TCP connections that an end keeps.
pub(crate) const SOCKETS_OF_AN_END: Constant =
    Constant { what: "TCP sockets that an end keeps", stock: 1.0, ferrite: 0.0, source: DESCRIPTORS };
/// TCP connections that a process keeps for each process that it sends to, and for each that sends to it.
pub(crate) const SOCKETS_OF_A_PEER: Constant = Constant {
    what: "TCP sockets that a process keeps for each process that it sends to, or that sends to it",
    stock: 0.0,
    ferrite: 1.0,
    source: DESCRIPTORS,
};
/// Descriptors of a process for its NICs, of which it uses one: commands and events of each.
pub(crate) const DESCRIPTORS_OF_A_NODE: Constant = Constant {
    what: "descriptors of a process for 8 cards: commands and events",
    stock: 16.0,
    ferrite: 16.0,
    source: "events counted as above; one more for commands assumed, which the software device has not",
};
/// Other descriptors of a process that has connections on one card.
pub(crate) const DESCRIPTORS_OF_A_PROCESS: Constant = Constant {
    what: "other descriptors of a process that uses one card: port, timer, statistics, epoll, eventfd",
    stock: 0.0,
    ferrite: 6.0,
    source: DESCRIPTORS,
};
/// Threads of a process with 8 cards.
pub(crate) const THREADS: Constant = Constant {
    what: "threads of a process that uses one of 8 cards",
    stock: 8.0,
    ferrite: 1.0,
    source: "counted: /proc/PID/task in the same run. Ferrite has one for each card that is used, the built-in transport one for each card",
};
/// Messages over TCP that set up a connection, both ways together.
pub(crate) const MESSAGES: Constant = Constant {
    what: "TCP messages that set up a connection",
    stock: 5.0,
    ferrite: 3.0,
    source: "counted: `strace -e sendto` of `ferrite solo`, 120 connections less 20; Hello, Reply and Commit in Ferrite",
};
/// Frames over TCP that recover a connection, both ways together.
pub(crate) const RECOVERY_MESSAGES: Constant = Constant {
    what: "TCP messages that recover a connection",
    stock: 0.0,
    ferrite: 6.0,
    source: "read in src/proto/recovery: two Halts, Offer, Answer, Ready, Account. NCCL 2.21.5 recovers none",
};
/// Commands that a card carries out for each queue pair of an end in a recovery.
pub(crate) const RECOVERY_COMMANDS: Constant = Constant {
    what: "commands of an end for each queue pair in a recovery: ERROR, destruction, creation, INIT, RTR, RTS",
    stock: 0.0,
    ferrite: 6.0,
    source: "read in src/net/recovery",
};

/// Commands that a card carries out for an end in a recovery, however many queue pairs it has.
pub(crate) const RECOVERY_QUEUE_COMMANDS: Constant = Constant {
    what: "commands of an end in a recovery for its completion queue: creation, destruction",
    stock: 0.0,
    ferrite: 2.0,
    source: "read in src/net/qp",
};

/// All of them, in the order of the table.
pub(crate) const CONSTANTS: [Constant; 18] = [
    QUEUE_PAIRS,
    FLUSH_QUEUE_PAIRS,
    QUEUE_KIB,
    FLUSH_KIB,
    REGISTERED_BYTES,
    COMMANDS,
    QUEUE_PAIR_COMMANDS,
    FLUSH_COMMANDS,
    CPU_US,
    SOCKETS_OF_AN_END,
    SOCKETS_OF_A_PEER,
    DESCRIPTORS_OF_A_NODE,
    DESCRIPTORS_OF_A_PROCESS,
    THREADS,
    MESSAGES,
    RECOVERY_MESSAGES,
    RECOVERY_COMMANDS,
    RECOVERY_QUEUE_COMMANDS,
];
