//! Operations that NCCL reports to Ferrite as its profiler: which collective of which communicator
//! a connection's messages belong to.
//!
//! NCCL's events come from the threads that call NCCL, and from its progress threads. Two tables of
//! fixed size store them without locks. A thread of Ferrite reads the tables once a second, and
//! writes the results into records and reports. The data path takes no part. NCCL reports the
//! communicator, the direction and the peer's rank of each operation, and a connection has the same
//! three.
//!
//! | file | contents |
//! | --- | --- |
//! | `handle` | the handles that NCCL gets for its communicators and events: numbers, not addresses |
//! | [`communicators`] | NCCL's communicators, and the operations begun in each |
//! | [`live`] | network operations that NCCL has begun and not ended, for each channel, peer and direction |
//! | `place`, `sync` | one slot of that table, and its atomics |
//! | [`snapshot`] | both at one moment, and the operation of a connection |

pub mod communicators;
mod handle;
pub mod live;
mod place;
pub mod snapshot;
mod sync;
