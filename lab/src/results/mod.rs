//! What a run found: the record that `raw.json` holds, and the statistics in it.
//!
//! | file | what is in it |
//! |---|---|
//! | [`judgement`] | whether two sides differ, and the least difference that could have been found |
//! | [`loaded`] | what a worker process found when it had loaded its transport |
//! | [`run`] | one pair of processes that measured |
//! | [`rows`] | the runs as rows, one per key, and as groups of rows |
//! | [`earlier`], [`changed`] | the run against an earlier one, and what has changed |
//! | [`side`], [`machine`] | the transport, as evidence; the machine |
//! | [`record`] | all of these together |
//! | `file_hash` | the SHA-256 of a file |

pub mod changed;
pub mod earlier;
pub mod file_hash;
pub mod judgement;
pub mod loaded;
pub mod machine;
pub mod record;
pub mod rows;
pub mod run;
pub mod side;
