//! Two fresh processes with a line to each other: rank 0 and rank 1.
//!
//! The program starts itself again as a worker ([`Pair::spawn`](parent::Pair::spawn)). A test
//! starts its own binary again, so that both ends are written as one closure ([`run`]):
//!
//! ```no_run
//! use lab::nccl::library::Source;
//! use lab::pair::{self, PeerConn, Setting};
//! use lab::transport::Transport;
//! use lab::verbs::Verbs;
//!
//! // in a #[test] fn zero_bytes(), module `data`
//! # fn main() -> lab::error::Result<()> {
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
//! | [`setting`] | how a pair is started; [`run`]: the body of a test in both processes |
//! | [`parent`] | [`Pair`](parent::Pair): both processes, as their parent sees them; one process of a pair, as its parent sees it; a process of a pair on another host: what starts it there, and what stands for it here; what a process sends to its parent |
//! | [`worker_ctx`] | [`WorkerCtx`]: rank, parent and peer of a process of a pair, inside that process; memory that all pairs of a run use; [`PeerConn`]: a connection each way between the two processes |

pub mod parent;
pub mod setting;
pub mod worker_ctx;

pub use crate::pair::setting::PairPermit;
pub use crate::pair::setting::run;
pub use crate::pair::worker_ctx::PeerConn;
pub use setting::Setting;
pub use worker_ctx::WorkerCtx;
