//! A connection whose two ends are in this process.

use crate::comm::{RecvComm, SendComm};
use crate::error::Result;
use crate::solo::Stage;

/// Both ends of one connection.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) send: SendComm,
    pub(super) recv: RecvComm,
}

impl Wire {
    /// Listens, then connects and accepts in turn until both ends are there.
    pub(super) fn open(stage: &Stage) -> Result<Self> {
        let (mut handle, mut listener) = stage.transport.listen(stage.listener)?;
        let mut deadline = stage.deadline("connecting to itself");
        let (mut send, mut recv) = (None, None);
        loop {
            if send.is_none() {
                send = stage.transport.connect(stage.sender, &mut handle)?;
            }
            if recv.is_none() {
                recv = listener.accept()?;
            }
            match (send, recv) {
                (Some(send), Some(recv)) => {
                    listener.close()?;
                    return Ok(Self { send, recv });
                }
                pending => (send, recv) = pending,
            }
            deadline.idle()?;
        }
    }

    pub(super) fn close(self) -> Result<()> {
        let sent = self.send.close();
        self.recv.close()?;
        sent
    }
}
