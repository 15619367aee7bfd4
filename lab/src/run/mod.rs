//! Runs: pairs of worker processes, from one to many.
//!
//! | file | what is in it |
//! |---|---|
//! | `session` | one pair of workers from start to end; the worker process, and what it reports; the progress bar |
//! | `other_host` | a comparison over two hosts: the other one, this one as the other one, what they say |
//! | `compare` | A against B: verified, then measured in turn; one transport, every byte checked, over one connection, two connections and fused devices; what messages cost the card, counted |

pub(crate) mod compare;
pub(crate) mod other_host;
pub(crate) mod session;
