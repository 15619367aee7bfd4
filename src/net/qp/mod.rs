//! The queue pairs of a connection.
//!
//! | file | contents |
//! | --- | --- |
//! | [`wr_id`] | ids of work requests |
//! | [`init_rail`] | the queue pairs of one rail in state INIT, and their completion queue |
//! | [`set`] | those of all rails: before they are connected, and connected |
//! | [`connect`], [`priority`] | from INIT to RTS; the service level and traffic class of the packets |
//! | [`reach`] | the test of new queue pairs in a recovery |
//! | [`failure`], `behind_error` | the error of a failed completion; completions that come after one |
//! | [`fence`] | the end of queue pairs |

mod behind_error;
pub mod connect;
pub mod failure;
pub mod fence;
pub mod init_rail;
pub mod priority;
pub mod reach;
pub mod set;
pub mod wr_id;
