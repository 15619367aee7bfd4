//! A device that is made of two: which one each rank uses.

use crate::error::{Error, Result};
use crate::transport::instance::Transport;

/// The device that is made of two others: by the transport itself, if it has one (a v8 transport fuses the ports of a
/// card on its own), else made here. Rank 1 takes the second fused device, or the third and fourth plain one, where
/// there are so many.
///
/// # Errors
/// Those of the transport; [`Error::Refused`] if there is none and none can be made.
pub(crate) fn device_of(transport: &Transport, rank: usize) -> Result<usize> {
    let count = transport.devices()?;
    let mut fused = Vec::new();
    for device in 0..count {
        // Version 8 has no field for it: the built-in transport joins the names.
        if transport.properties(device)?.name.contains('+') {
            fused.push(device);
        }
    }
    if let Some(device) = fused.get(rank).or_else(|| fused.first()) {
        return Ok(*device);
    }
    if count < 2 || transport.identity().interface == 8 {
        return Err(Error::Refused(format!("{} fused no devices: it shows {count}", transport.name())));
    }
    let first = if count >= 4 { 2 * rank } else { 0 };
    transport.fuse(&[first, first + 1])
}
