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
//! | [`parent`] | [`Setting`]: how a pair is started; [`Pair`](parent::Pair): both processes, as their parent sees them; a process on another host, and its stand-in here; [`run`]: the body of a test in both processes |
//! | [`worker_ctx`] | [`WorkerCtx`]: a process of a pair as it sees itself, and its messages to its parent; memory that all pairs of a run use; [`PeerConn`]: a connection each way between the two processes |

pub mod parent;
pub mod worker_ctx;

pub use parent::{PairPermit, Setting, run};
pub use worker_ctx::{PeerConn, WorkerCtx};
