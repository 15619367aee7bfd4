//! What this program asks of the operating system, for itself.
//!
//! | file | what is in it |
//! |---|---|
//! | `host` | CPUs, limits, memory of this process |
//! | `maps` | which files are mapped into this process |
//! | `interrupt` | SIGINT |
//! | `output` | stdout, stderr and files |
//! | `dist` | where the project's built files lie |
//! | `suitability` | whether this machine's loader takes a file |
//! | `subprocess` | parts of this program that run in a process of their own |
//! | `threads` | the threads of another process, and what they have had of the processors |

pub mod dist;
pub mod host;
pub mod interrupt;
pub mod maps;
pub mod output;
pub mod root;
pub mod subprocess;
pub mod suitability;
pub mod threads;
