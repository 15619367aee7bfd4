//! Listening, connecting and accepting: the calls that make communicators.

use std::ffi::{c_int, c_void};

use crate::error::{Error, Result};
use crate::nccl::abi;
use crate::nccl::abi::later;
use crate::nccl::library::{Vtable, slot};
use crate::transport::comm::{RecvComm, SendComm};
use crate::transport::deadline::Deadline;
use crate::transport::instance::{Transport, call};

/// The 128 bytes that `listen` fills and NCCL carries to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Handle(pub [u8; abi::NCCL_NET_HANDLE_MAXSIZE as usize]);

impl Transport {
    /// Opens a listener on `device`; the handle goes to the peer.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Data`] if no listener comes back.
    pub fn listen(&self, device: usize) -> Result<(Handle, Listener)> {
        let mut handle = Handle([0; _]);
        let mut raw = std::ptr::null_mut();
        let (index, place) = (device as c_int, (&raw mut handle).cast());
        match self.vtable {
            Vtable::V8(net) => call!(self, net.listen(index, place, &raw mut raw)),
            Vtable::V9(net) => call!(self, net.listen(index, place, &raw mut raw)),
            Vtable::V10(net) => call!(self, net.listen(index, place, &raw mut raw)),
            Vtable::V11(net) | Vtable::V12(net) => {
                call!(self, net.listen(self.context(), index, place, &raw mut raw))
            }
        }?;
        if raw.is_null() {
            return Err(Error::Data(format!("{}: listen gave nothing", self.name())));
        }
        let transport = self.clone();
        Ok((handle, Listener { transport, raw }))
    }

    /// One step of connecting to the listener behind `handle`: `None` means call again, with the
    /// same copy of the handle, since a transport may keep its progress in it.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn connect(&self, device: usize, handle: &mut Handle) -> Result<Option<SendComm>> {
        let (mut made, mut device_handle) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (raw, unused) = (&raw mut made, &raw mut device_handle);
        let (index, place) = (device as c_int, std::ptr::from_mut(handle).cast());
        match self.vtable {
            Vtable::V8(net) => call!(self, net.connect(index, place, raw, unused)),
            Vtable::V9(net) => call!(self, net.connect(index, place, raw, unused)),
            Vtable::V10(net) => {
                let mut config = later::Config { traffic_class: self.traffic_class };
                call!(self, net.connect(index, &raw mut config, place, raw, unused))
            }
            Vtable::V11(net) | Vtable::V12(net) => {
                call!(self, net.connect(self.context(), index, place, raw, unused))
            }
        }?;
        Ok((!made.is_null()).then(|| SendComm::new(self, made)))
    }
}

/// A listening communicator.
#[derive(Debug)]
pub struct Listener {
    transport: Transport,
    raw: *mut c_void,
}

// SAFETY: NCCL uses a communicator from different threads over its life, one at a time.
unsafe impl Send for Listener {}

impl Listener {
    /// One step of accepting the one connection: `None` means call again.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn accept(&mut self) -> Result<Option<RecvComm>> {
        let mut raw = std::ptr::null_mut();
        let mut device_handle = std::ptr::null_mut();
        call!(&self.transport, accept(self.raw, &raw mut raw, &raw mut device_handle))?;
        Ok((!raw.is_null()).then(|| RecvComm::new(&self.transport, raw)))
    }

    /// Closes it.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn close(mut self) -> Result<()> {
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        call!(&self.transport, closeListen(raw))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.raw.is_null()
            && let Err(problem) = call!(&self.transport, closeListen(self.raw))
        {
            log::warn!("{problem}");
        }
    }
}

/// Calls `connect` from device `from` and `accept` on `listener` in turn until both have given a
/// communicator. The handle is that of the listener that `connect` is to reach: of `listener`, or
/// of one in another process. Before each attempt, `between` does what else has to be done.
///
/// # Errors
/// Those of the transport's calls; [`Error::Stalled`].
pub fn connect_and_accept(
    transport: &Transport,
    from: usize,
    handle: &mut Handle,
    listener: &mut Listener,
    deadline: &mut Deadline,
    mut between: impl FnMut(),
) -> Result<(SendComm, RecvComm)> {
    let (mut send, mut recv) = (None, None);
    loop {
        between();
        if send.is_none() {
            send = transport.connect(from, handle)?;
        }
        if recv.is_none() {
            recv = listener.accept()?;
        }
        match (send, recv) {
            (Some(send), Some(recv)) => return Ok((send, recv)),
            pending => (send, recv) = pending,
        }
        deadline.idle()?;
    }
}

/// Both ends of one connection.
#[derive(Debug)]
pub struct LocalConn {
    pub send: SendComm,
    pub recv: RecvComm,
}

impl LocalConn {
    /// Connects device `from` to a new listener on device `to`: one thread calls `connect` and
    /// `accept` in turn until both ends are there.
    pub fn open(
        transport: &Transport,
        from: usize,
        to: usize,
        deadline: &mut Deadline,
    ) -> Result<Self> {
        let (mut handle, mut listener) = transport.listen(to)?;
        let (send, recv) =
            connect_and_accept(transport, from, &mut handle, &mut listener, deadline, || ())?;
        listener.close()?;
        Ok(Self { send, recv })
    }

    /// Closes both ends, the sending one first.
    pub fn close(self) -> Result<()> {
        let sent = self.send.close();
        self.recv.close()?;
        sent
    }
}
