//! What a point has to work with, in each of its two processes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::check::raw::Raw;
use crate::check::softrnic::Softrnic;
use crate::error::{Error, Result};
use crate::nccl::library::Source;
use crate::pair::worker_ctx::WorkerCtx;
use crate::transport::instance::Transport;
use crate::transport::listener::Handle;

/// What both processes of a step are to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StepJob {
    /// The point.
    pub(crate) number: u32,
    /// The step of it, from 0.
    pub(crate) step: usize,
    /// The transport.
    pub(crate) source: Source,
    /// NCCL 2.21.5, where it is in the cache: for a peer of another kind and as a reference.
    pub(crate) built_in: Option<PathBuf>,
    /// The command line of the software device, where that is what is used.
    pub(crate) softrnic: Option<PathBuf>,
    /// Devices that are fused into one, 1 or 2.
    pub(crate) rails: usize,
    /// The links are InfiniBand, else RoCE.
    pub(crate) infiniband: bool,
}

/// One of the two processes of a step.
#[derive(Debug)]
pub(crate) struct Context<'s> {
    /// The process: its rank, and the sockets to its peer and its parent.
    pub(crate) worker: &'s mut WorkerCtx,
    /// What both processes do.
    pub(crate) job: &'s StepJob,
    transport: Option<Transport>,
}

/// What points need that make it fail or read its state.
pub(super) const SOFTWARE_DEVICE: &str = "the software device";

impl<'s> Context<'s> {
    pub(crate) fn new(worker: &'s mut WorkerCtx, job: &'s StepJob) -> Self {
        Self { worker, job, transport: None }
    }

    /// 0 or 1.
    pub(crate) fn rank(&self) -> usize {
        self.worker.rank()
    }

    /// The transport, initialised at the first call.
    ///
    /// # Errors
    /// Those of [`Transport::open`].
    pub(crate) fn transport(&mut self) -> Result<Transport> {
        if let Some(transport) = &self.transport {
            return Ok(transport.clone());
        }
        let transport = Transport::open(&self.job.source)?;
        self.transport = Some(transport.clone());
        Ok(transport)
    }

    /// The transport's functions themselves.
    ///
    /// # Errors
    /// Those of [`Context::transport`].
    pub(super) fn raw(&mut self) -> Result<Raw> {
        Ok(Raw::of(&self.transport()?))
    }

    /// The device that a rank uses: rank 1 the second one where there are two.
    ///
    /// # Errors
    /// Those of the transport.
    pub(crate) fn device(&mut self) -> Result<usize> {
        let rank = self.rank();
        self.transport()?.device_of(rank, None)
    }

    /// The software device, to change and to read its state.
    ///
    /// # Errors
    /// [`Error::Missing`] on devices of the machine.
    pub(super) fn softrnic(&self) -> Result<Softrnic> {
        self.job.softrnic.as_deref().map(Softrnic::new).ok_or(Error::Missing(SOFTWARE_DEVICE))
    }

    /// Whether so much memory can be registered: a device of the kernel's needs all of it there.
    pub(super) fn can_pin(&self, bytes: u64) -> bool {
        let free = || -> Option<u64> {
            let told = std::fs::read_to_string("/proc/meminfo").ok()?;
            let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
            Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
        };
        self.job.softrnic.is_some() || free().is_none_or(|free| free >= bytes)
    }

    /// Swaps handles with the peer.
    ///
    /// # Errors
    /// [`Error::PeerGone`].
    pub(crate) fn swap_handles(&mut self, mine: &Handle) -> Result<Handle> {
        let mut theirs = Handle([0; _]);
        theirs.0.copy_from_slice(&self.worker.exchange(&mine.0)?);
        Ok(theirs)
    }

    /// Forks: the child runs `body` and is then killed; returns here when it has ended. To be
    /// called before the transport is loaded here.
    pub(super) fn in_killed_child(&mut self, body: impl FnOnce(&mut Self)) {
        // SAFETY: this process has one thread, so the child has all that there is.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as for die_with_parent: a plain system call; then the end of the child, as a crash would be.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            body(self);
            // SAFETY: a signal to the process itself.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let mut status = 0;
        // SAFETY: the child that was just made.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
    }
}
