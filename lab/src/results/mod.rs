//! What a run found: the record that `raw.json` holds, and the statistics in it.
//!
//! | file | what is in it |
//! |---|---|
//! | [`judgement`] | whether two sides differ, the rule and why it holds; the smallest difference that would be visible |
//! | [`rows`] | the sets as rows, one per key, and as groups of rows |
//! | [`record`] | all of these together; what a worker process found when it had loaded its transport; the transport, as evidence; the machine; the SHA-256 of a file |

pub mod judgement;
pub mod record;
pub mod rows;
