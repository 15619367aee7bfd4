//! Random bytes from the kernel.

use crate::error::{Error, Result};
use rustix::rand::{GetRandomFlags, getrandom};

/// `N` bytes that cannot be predicted.
///
/// # Errors
/// The kernel has none, which happens only during boot.
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut out = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut out[filled..], GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::os("getrandom", e.raw_os_error())),
        }
    }
    Ok(out)
}
