//! The operations that NCCL has told of as to a profiler: which collective, of which communicator, a connection's messages are of.
//!
//! NCCL's events come from the threads that call NCCL, and from its progress threads. What they tell is kept in two tables of fixed
//! size, without locks: a thread of Ferrite looks at them once a second, and writes what it finds into records and reports. The data
//! path takes no part: NCCL tells with each operation the communicator, the direction and the peer's rank, and a connection has the
//! same three.
//!
//! | file | what it is |
//! |---|---|
//! | `handle` | what NCCL is given for its communicators and events: numbers that tell all, and no addresses |
//! | [`communicators`] | NCCL's communicators, and what has been begun in each |
//! | [`live`] | operations of the network that NCCL has begun and not ended: one for each channel, peer and direction |
//! | `place`, `sync` | one place of that table, and its atomics |
//! | [`seen`] | both at one moment, and the operation of a connection |

pub mod communicators;
mod handle;
pub mod live;
mod place;
pub mod seen;
mod sync;
