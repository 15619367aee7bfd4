//! The limit of locked memory: what devices reach, queues included, is locked, and an errno does not say so.

use crate::error::Error;

/// `error`, which came with errno `reason`, with the limit if that is likely the cause: as far as the kernel tells, it does
/// not leave room for `asked` bytes more.
#[cold]
pub(super) fn explain(mut error: Error, reason: i32, asked: u64) -> Error {
    if let (libc::ENOMEM | libc::EAGAIN, Some(limit)) = (reason, locked_memory())
        && is_exceeded(limit, held(), asked)
    {
        error.text += &advice(limit);
    }
    error
}

/// Whether `asked` bytes beside those that are `held` are more than `limit`.
fn is_exceeded(limit: u64, held: u64, asked: u64) -> bool {
    held.saturating_add(asked) > limit
}

/// Bytes that this process may lock; `None`: as many as it wants.
fn locked_memory() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (rc == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Bytes that this process has locked, or devices for it; 0 where the kernel does not tell.
fn held() -> u64 {
    std::fs::read_to_string("/proc/self/status").map_or(0, |status| held_by(&status))
}

/// The same of the text of `/proc/self/status`. Which of the two numbers counts what devices reach differs by kernel.
fn held_by(status: &str) -> u64 {
    let kib = |line: &str| line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
    let lines = status.lines().filter(|line| line.starts_with("VmLck:") || line.starts_with("VmPin:"));
    lines.filter_map(kib).sum::<u64>() * 1024
}

fn advice(bytes: u64) -> String {
    format!(
        "; likely: RLIMIT_MEMLOCK, {} KiB here, is too small for RDMA: raise it with `ulimit -l unlimited`, in \
         /etc/security/limits.conf (memlock), with LimitMEMLOCK=infinity of the systemd unit, or with \
         `docker run --ulimit memlock=-1`",
        bytes / 1024
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_with_room_is_not_blamed() {
        let status = "Name:\tx\nVmPeak:\t 900 kB\nVmLck:\t       4 kB\nVmPin:\t      40 kB\nVmHWM:\t 70 kB\n";
        let held = held_by(status);
        assert_eq!((held, held_by("")), (44 << 10, 0));
        assert!(is_exceeded(64 << 10, held, 21 << 10) && !is_exceeded(64 << 10, held, 20 << 10));
        assert!(is_exceeded(64 << 10, held, u64::MAX));
    }

    #[test]
    fn only_a_lack_of_memory_is_explained() {
        let text = |reason| explain(Error::os("x", reason), reason, u64::MAX).text.clone();
        assert!(!text(libc::EINVAL).contains("MEMLOCK") && !text(libc::EFAULT).contains("MEMLOCK"));
        assert_eq!(text(libc::ENOMEM).contains("MEMLOCK"), locked_memory().is_some());
    }
}
