//! The commands by which a program prints a shell's completions of its command line and writes its man pages. Programs have them as
//! subcommands; both are made of what clap knows of the command line.

mod completions;
mod man;

pub use completions::Completions;
pub use man::{CannotWrite, Man};
