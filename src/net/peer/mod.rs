//! The peer of an established connection.
//!
//! | file | contents |
//! | --- | --- |
//! | [`state`] | whether it is alive: one word for the data path ([`super::data::state_word`]), and how to reach it |
//! | [`name`] | its name in log lines and errors |
//! | [`first_error`] | the first error of this process's connections, sent to peers whose connections are closed because of it |
//! | [`recovery_progress`] | the progress of a long recovery |

pub mod first_error;
pub mod name;
pub mod recovery_progress;
pub mod state;
