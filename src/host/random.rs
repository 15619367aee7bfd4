//! Random bytes from the kernel.

use crate::error::{Error, Result, errno};

/// `N` bytes nobody can guess.
///
/// # Errors
/// The kernel has none to give (not after boot).
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut out = [0; N];
    let mut filled = 0;
    while filled < N {
        let rest = &mut out[filled..];
        // SAFETY: `rest` is a valid place for that many bytes.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(n) => filled += n,
            Err(_) if errno() == libc::EINTR => {}
            Err(_) => return Err(Error::os("getrandom", errno())),
        }
    }
    Ok(out)
}
