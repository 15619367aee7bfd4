//! Runs: pairs of worker processes, from one to many.
//!
//! | file | what is in it |
//! |---|---|
//! | `worker`, `worker_report` | the worker process, and what it reports |
//! | `session` | one pair of workers from start to end |
//! | `other_host`, `host_part`, `host_message` | a comparison over two hosts: the other one, this one as the other one, what they say |
//! | `verification` | one transport, every byte checked, over one connection, two connections and fused devices |
//! | `compare` | A against B: verified, then measured in turn |
//! | `costs` | what messages cost the card, counted |
//! | `progress` | the progress bar |

pub(crate) mod compare;
mod costs;
mod host_message;
pub(crate) mod host_part;
pub(crate) mod other_host;
pub(crate) mod progress;
pub(crate) mod session;
pub(crate) mod verification;
pub(crate) mod worker;
mod worker_report;
