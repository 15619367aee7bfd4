//! Moving bytes: between processes, within one, and between a GPU and the shared file.
//!
//! `piece` are the ranges, `vector` cuts them into what one system call takes, `transfer` copies, `gpu` calls the CUDA driver.

pub(crate) mod gpu;
pub(crate) mod piece;
pub(crate) mod transfer;
pub(crate) mod vector;
