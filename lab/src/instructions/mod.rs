//! CPU instructions of a transport, out of callgrind's output of `ferrite solo`.
//!
//! | file | what is in it |
//! |---|---|
//! | `format` | the lines of the file |
//! | `callgrind` | the costs of one library in it |
//! | `locked` | which of the instructions were locked |

pub(crate) mod callgrind;
mod format;
mod locked;
