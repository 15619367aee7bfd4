//! CPU instructions of a transport, out of callgrind's output of `ferrite solo`.
//!
//! | file | what is in it |
//! |---|---|
//! | `callgrind` | the file format, and the costs of one library in it |

pub(crate) mod callgrind;
