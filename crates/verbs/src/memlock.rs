//! The limit of locked memory, `RLIMIT_MEMLOCK`. Memory that devices access, queues included,
//! counts as locked, and the errno of a failure does not show that the limit is the cause.

use crate::error::Error;
use rustix::process::{Resource, getrlimit};

/// `error`, whose errno is `errno`, with advice if the limit is the likely cause: locking `asked`
/// more bytes would exceed it, by the kernel's count.
#[cold]
pub(super) fn explain(error: Error, errno: i32, asked: u64) -> Error {
    match (errno, limit()) {
        (libc::ENOMEM | libc::EAGAIN, Some(limit)) if is_exceeded(limit, locked(), asked) => {
            error.context(advice(limit))
        }
        _ => error,
    }
}

/// Whether `asked` bytes more than the `locked` ones exceed `limit`.
fn is_exceeded(limit: u64, locked: u64, asked: u64) -> bool {
    locked.saturating_add(asked) > limit
}

/// Bytes that this process may lock. `None`: there is no limit.
fn limit() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// Bytes currently locked in this process, by itself or for devices; 0 if the kernel does not
/// report it.
fn locked() -> u64 {
    std::fs::read_to_string("/proc/self/status").map_or(0, |status| locked_in(&status))
}

/// [`locked`] from the text of `/proc/self/status`. Which of the two lines counts memory of devices
/// depends on the kernel.
fn locked_in(status: &str) -> u64 {
    let kib =
        |line: &str| line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
    let lines =
        status.lines().filter(|line| line.starts_with("VmLck:") || line.starts_with("VmPin:"));
    lines.filter_map(kib).sum::<u64>() * 1024
}

fn advice(bytes: u64) -> String {
    format!(
        "likely: RLIMIT_MEMLOCK, {} KiB here, is too small for RDMA: raise it with `ulimit -l unlimited`, in \
         /etc/security/limits.conf (memlock), with LimitMEMLOCK=infinity of the systemd unit, or with \
         `docker run --ulimit memlock=-1`",
        bytes / 1024
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_not_exceeded_is_not_the_cause() {
        let status = "Name:\tx\nVmPeak:\t 900 kB\nVmLck:\t       4 kB\nVmPin:\t      40 kB\nVmHWM:\t 70 kB\n";
        let locked = locked_in(status);
        assert_eq!((locked, locked_in("")), (44 << 10, 0));
        assert!(
            is_exceeded(64 << 10, locked, 21 << 10) && !is_exceeded(64 << 10, locked, 20 << 10)
        );
        assert!(is_exceeded(64 << 10, locked, u64::MAX));
    }

    #[test]
    fn only_enomem_and_eagain_are_explained() {
        let text = |errno| explain(Error::os("x", errno), errno, u64::MAX).text();
        assert!(!text(libc::EINVAL).contains("MEMLOCK") && !text(libc::EFAULT).contains("MEMLOCK"));
        assert_eq!(text(libc::ENOMEM).contains("MEMLOCK"), limit().is_some());
    }
}
