//! The measurements and the checks of data, as both processes of a pair run them in step.
//!
//! | file | what is in it |
//! |---|---|
//! | [`metric`] | the quantities: a table with unit, headline value, columns and titles of each |
//! | [`sample`] | one measured value, and what it is a value of |
//! | [`direction`] | who sends |
//! | [`estimate`] | medians and intervals that assume nothing of the distribution |
//! | [`plan`] | the tasks of a pair of processes |
//! | `conn` | a connection each way with registered memory: what the measurements use |
//! | `pattern` | contents that tell messages and offsets apart |
//! | [`byte_check`] | comparing what arrived with what was sent |
//! | `stream`, `checked_stream` | messages in flight, timed or with every byte checked |

pub mod byte_check;
pub mod checked_stream;
pub mod conn;
pub mod direction;
pub mod estimate;
pub mod latency;
pub mod metric;
pub mod pattern;
pub mod plan;
pub mod sample;
pub mod setup;
pub mod stream;
pub mod verify;
