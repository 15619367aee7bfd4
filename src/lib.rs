//! Ferrite.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::exit,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::todo,
        clippy::unimplemented
    )
)]
pub mod abi;
pub mod error;
pub mod host;
pub mod net;
pub mod proto;
pub mod verbs;
