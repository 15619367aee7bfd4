//! The limit of locked memory: what devices reach, queues included, is locked, and an errno does not say so.

use crate::error::Error;

/// `error`, which came with errno `reason`, with the limit where that is the likely cause.
#[cold]
pub(super) fn explain(mut error: Error, reason: i32) -> Error {
    if let (libc::ENOMEM | libc::EAGAIN, Some(bytes)) = (reason, locked_memory()) {
        error.text += &advice(bytes);
    }
    error
}

/// Bytes that this process may lock; `None`: as many as it wants.
fn locked_memory() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (rc == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn advice(bytes: u64) -> String {
    format!(
        "; likely: RLIMIT_MEMLOCK, {} KiB here, is too small for RDMA: raise it with `ulimit -l unlimited`, in \
         /etc/security/limits.conf (memlock), with LimitMEMLOCK=infinity of the systemd unit, or with \
         `docker run --ulimit memlock=-1`",
        bytes / 1024
    )
}
