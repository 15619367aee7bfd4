//! What a run found: the record that `raw.json` holds, and the statistics in it.
//!
//! | file | what is in it |
//! |---|---|
//! | [`judgement`] | whether two sides differ, and the least difference that could have been found |
//! | [`rows`] | the runs as rows, one per key, and as groups of rows |
//! | [`earlier`] | the run against an earlier one, and what has changed |
//! | [`record`] | all of these together; what a worker process found when it had loaded its transport; one pair of processes that measured; the transport, as evidence; the machine; the SHA-256 of a file |

pub mod earlier;
pub mod judgement;
pub mod record;
pub mod rows;
