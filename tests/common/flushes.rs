//! Flushes of received data to GPU memory, by NCCL's own calls.

use crate::common::plugin_transport;
use lab::error::Result;
use lab::nccl::abi;
use lab::pair::{PeerConn, WorkerCtx};
use lab::transport::Transport;
use lab::transport::buffer::Buffer;
use lab::transport::comm::Region;
use lab::transport::deadline::{finished, posted};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// A connection each way, and memory at its end that counts as a GPU's: to the software device it
/// is like any other.
pub(crate) struct Flushes {
    out: Region,
    into: Region,
    gpu: *mut c_void,
    link: PeerConn,
    transport: Transport,
}

impl Flushes {
    /// With memory for messages of up to `length` bytes.
    pub(crate) fn open(worker: &mut WorkerCtx, length: usize) -> Result<Self> {
        let transport = plugin_transport()?;
        let device = worker.rank().min(transport.devices()? - 1);
        let link = PeerConn::open(worker, &transport, device)?;
        let (mine, theirs) = (Arc::new(Buffer::new(length)?), Arc::new(Buffer::new(length)?));
        let (out, into) = (link.send.register(&mine)?, link.recv.register(&theirs)?);
        let (mut gpu, start) = (std::ptr::null_mut(), theirs.address(0, length)?.cast());
        let register = transport.vtable().regMr.expect("a slot");
        // SAFETY: a live communicator and memory that outlives the handle.
        let code = unsafe {
            register(link.recv.raw(), start, length, abi::NCCL_PTR_CUDA as c_int, &raw mut gpu)
        };
        assert_eq!(code, abi::ncclSuccess);
        Ok(Self { out, into, gpu, link, transport })
    }

    /// A message each way.
    pub(crate) fn exchange(&self, worker: &WorkerCtx, bytes: usize) -> Result<()> {
        let mut deadline = worker.deadline("a message");
        let length = self.into.memory().len();
        let receive = posted(&mut deadline, || self.link.recv.receive(&self.into, 0, length, 0))?;
        let send = posted(&mut deadline, || self.link.send.send(&self.out, 0, bytes, 0))?;
        finished(&mut deadline, send, &mut [0])?;
        finished(&mut deadline, receive, &mut [0])
    }

    /// What `iflush` of a received message returns, and its request.
    pub(crate) fn flush(&self, bytes: usize) -> Result<(abi::ncclResult_t, *mut c_void)> {
        let iflush = self.transport.vtable().iflush.expect("a slot");
        let start: *mut c_void = self.into.memory().address(0, 1)?.cast();
        let (mut request, mut data, mut sizes, mut handles) =
            (std::ptr::null_mut(), [start], [bytes as c_int], [self.gpu]);
        let (data, sizes, handles) = (data.as_mut_ptr(), sizes.as_mut_ptr(), handles.as_mut_ptr());
        // SAFETY: arrays of one, and a live communicator.
        let code =
            unsafe { iflush(self.link.recv.raw(), 1, data, sizes, handles, &raw mut request) };
        Ok((code, request))
    }

    /// Whether a flush is done, or the code of `test`.
    pub(crate) fn test(
        &self,
        request: *mut c_void,
    ) -> std::result::Result<bool, abi::ncclResult_t> {
        let mut done = 0;
        let test = self.transport.vtable().test.expect("a slot");
        // SAFETY: a live request; a flush has no sizes.
        match unsafe { test(request, &raw mut done, std::ptr::null_mut()) } {
            abi::ncclSuccess => Ok(done != 0),
            code => Err(code),
        }
    }

    pub(crate) fn close(self, worker: &mut WorkerCtx) -> Result<()> {
        worker.barrier()?;
        let deregister = self.transport.vtable().deregMr.expect("a slot");
        // SAFETY: not used again.
        assert_eq!(unsafe { deregister(self.link.recv.raw(), self.gpu) }, abi::ncclSuccess);
        drop((self.out, self.into));
        self.link.close()
    }
}
