//! Moving bytes: between processes, within one, and between a GPU and the shared file.
//!
//! `transfer` copies ranges, cut into what one system call takes; `gpu` calls the CUDA driver.

pub(crate) mod gpu;
pub(crate) mod transfer;
