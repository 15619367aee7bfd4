//! The process that copies GPU memory on behalf of one that uses the device. The library starts it.

use std::io::stdin;
use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::Args;
use ibverbs::control::gpu_helper::{Stage, serve};

use crate::outcome::Failure;

/// Standard input is the socket to the process that it copies for.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The fabric's file
    file: PathBuf,
    /// What the library speaks
    format: u32,
    /// Where in the file the bytes to and from which it copies begin
    at: u64,
    /// How many there are
    bytes: usize,
    /// The process slot of the one that it copies for
    owner: usize,
}

impl Options {
    /// Goes into the background; there it serves until the other process ends.
    pub(crate) fn serve(&self) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::Failed(format!("gpu-helper: {error}"));
        close_inherited().map_err(failed)?;
        let socket = stdin().as_fd().try_clone_to_owned().map_err(failed)?;
        // SAFETY: this program has one thread.
        match unsafe { libc::fork() } {
            -1 => Err(failed(std::io::Error::last_os_error())),
            0 => {
                // A signal from the terminal is for the application, which may need copies to end in order.
                // SAFETY: no memory is involved.
                unsafe { libc::setsid() };
                let stage = Stage { file: &self.file, at: self.at, bytes: self.bytes, owner: self.owner };
                serve(socket, stage, self.format).map_err(Failure::Failed)
            }
            // The one that has started it does not have to wait any more.
            _ => Ok(()),
        }
    }
}

/// Closes what the application had open, but for the standard streams: its peers are not to wait until this process ends, too.
fn close_inherited() -> std::io::Result<()> {
    let open =
        std::fs::read_dir("/proc/self/fd")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    for fd in open.collect::<Vec<_>>().into_iter().filter(|fd| *fd > 2) {
        // SAFETY: this program has opened none that it still uses.
        unsafe { libc::close(fd) };
    }
    Ok(())
}
