//! Two fresh processes with a line to each other: rank 0 and rank 1.
//!
//! The program starts itself again as a worker ([`Pair::spawn`](parent::Pair::spawn)). A test starts its own binary again, so
//! that both ends are written as one closure ([`run`]):
//!
//! ```no_run
//! use ferrite::nccl::library::Source;
//! use ferrite::pair::{self, PeerConn, Setting};
//! use ferrite::transport::Transport;
//! use ferrite::verbs::Verbs;
//!
//! // in a #[test] fn zero_bytes(), module `data`
//! # fn main() -> ferrite::error::Result<()> {
//! let setting = Setting::new(Verbs::softrnic("dist/softrnic".as_ref())?);
//! let sizes = pair::run("data::zero_bytes", &setting, |worker| {
//!     let transport = Transport::open(&Source::plugin("dist/lib/libnccl-net.so"))?;
//!     let conn = PeerConn::open(worker, &transport, 0)?;
//!     conn.close()?;
//!     Ok(worker.rank()) // sent back to the parent as JSON
//! })?;
//! assert_eq!(sizes, [0, 1]);
//! # Ok(())
//! # }
//! ```
//!
//! | file | what is in it |
//! |---|---|
//! | [`setting`] | how a pair is started |
//! | [`parent`] | [`Pair`](parent::Pair): both processes, as their parent sees them |
//! | `child` | one process of a pair, as its parent sees it |
//! | `host_end`, `stand_in` | a process of a pair on another host: what starts it there, and what stands for it here |
//! | [`message`] | what a process sends to its parent |
//! | [`worker_ctx`] | [`WorkerCtx`]: rank, parent and peer of a process of a pair, inside that process |
//! | [`pages`] | memory that all pairs of a run use |
//! | [`peer_conn`] | [`PeerConn`]: a connection each way between the two processes |
//! | [`test_pair`] | [`run`]: the body of a test in both processes |

mod child;
pub(crate) mod host_end;
pub mod message;
pub mod pages;
pub mod parent;
pub mod peer_conn;
pub mod setting;
pub(crate) mod stand_in;
pub mod test_pair;
pub mod worker_ctx;

pub use peer_conn::PeerConn;
pub use setting::Setting;
pub use test_pair::{PairPermit, run};
pub use worker_ctx::WorkerCtx;
