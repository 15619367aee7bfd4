//! The measurements and the checks of data, as both processes of a pair run them in step.
//!
//! | file | what is in it |
//! |---|---|
//! | [`metric`] | what a row is about: the quantities, in a table with name, unit and blocks of each; who sends |
//! | [`sample`] | medians and intervals that assume nothing of the distribution |
//! | [`plan`] | the tasks of a pair of processes; contents that tell messages and offsets apart |
//! | [`verify`] | comparing what arrived with what was sent |
//! | `stream` | messages in flight, timed or with every byte checked; a connection each way with registered memory: what the measurements use |
//! | [`turns`] | two transports that take turns in blocks |

pub mod metric;
pub mod plan;
pub mod sample;
pub mod stream;
pub mod turns;
pub mod verify;
