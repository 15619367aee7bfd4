//! What this program asks of the operating system, for itself.
//!
//! | file | what is in it |
//! |---|---|
//! | `host` | CPUs, limits, memory of this process; which files are mapped into this process; whether this machine's loader takes a file; the threads of another process, and what they have had of the processors |
//! | `environments` | an environment for each of two transports in this process |
//! | `output` | stdout, stderr and files; SIGINT |
//! | `dist` | where the project's built files lie |
//! | `subprocess` | parts of this program that run in a process of their own |

pub mod dist;
pub(crate) mod environments;
pub mod host;
pub mod output;
pub mod subprocess;
