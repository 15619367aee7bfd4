//! The test harness of this workspace: a dev-dependency of every crate in it. It depends on none of
//! them, so that their unit tests can use it as well.
//!
//! | a test needs | module |
//! |---|---|
//! | its own name | [`name`] |
//! | to wait until something has happened | [`wait`] |
//! | to run in a process of its own, or in two with a socket between them | [`side`], [`peer`], [`process`] |
//! | contents for buffers | [`bytes`] |
//! | the inputs of a fuzz target | [`corpus`] |
//! | a process that dies on purpose | [`crash`], [`forked`], [`process`] |
//! | what a program prints | [`program`] |
//! | a shared object that is written in C | [`c_library`] |
//! | software RDMA devices | [`softrnic`] |
//! | what `scripts/build.sh` has built | [`dist`] |
//! | the commands that the pages show | [`documented`] |
//! | to be counted as skipped where something is missing | [`skip`] |
//! | to hold what users see | [`snapshot!`] |
//! | a folder, a name that nobody else uses, a port that refuses or does not answer | [`scratch`], [`unique`], [`port`] |
//! | TCP connections that can be cut | [`relay`] |
//! | TCP ports that no other test takes | [`network`] |
//! | proof that code neither allocates nor calls the system | [`no_alloc_no_syscall`] |
//!
//! ```ignore
//! use testkit::softrnic::Softrnic;
//!
//! #[test]
//! fn a_byte_arrives() {
//!     Softrnic::new().ports(2).pair(|side, mut peer| {
//!         // in two processes that share a fabric
//!         assert_eq!(peer.swap(&side), 1 - side);
//!     });
//! }
//! ```

pub mod bytes;
pub mod c_library;
mod cases;
pub mod corpus;
pub mod crash;
pub mod dist;
pub mod documented;
pub mod forked;
pub mod name;
pub mod network;
pub mod no_alloc_no_syscall;
pub mod peer;
pub mod port;
pub mod process;
pub mod program;
pub mod relay;
mod role;
pub mod scratch;
pub mod side;
pub mod skip;
pub mod snapshot;
pub mod softrnic;
pub mod unique;
pub mod wait;

pub use name::test_name;
pub use peer::Peer;
pub use process::Process;
pub use scratch::Scratch;
pub use side::{alone, pair};
pub use skip::{Missing, skipped};
pub use wait::wait_until;
