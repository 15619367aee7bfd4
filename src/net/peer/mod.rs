//! What is known of the peer of an established connection.
//!
//! | file | what it is |
//! |---|---|
//! | [`state`] | whether it still lives: one number for the data path ([`super::data::state_word`]), and how to reach it |
//! | [`name`] | how it is called in log lines and errors |
//! | [`first_error`] | the first error of this process's connections, which peers are told when others are closed because of it |
//! | [`recovery_progress`] | how a recovery stands that takes long |

pub mod first_error;
pub mod name;
pub mod recovery_progress;
pub mod state;
