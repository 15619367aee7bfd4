//! Processes that end as a crash ends them: nothing is closed, nothing is said, no handler runs.

use crate::forked::ForkedChild;
use std::os::unix::process::ExitStatusExt;

/// Kills this process with SIGKILL.
pub fn die() -> ! {
    // SAFETY: plain numbers.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!("the kernel does not return from a SIGKILL to the process itself")
}

/// Forks a child that goes through `body` and then dies ([`die`]); returns when it has. To be
/// called in a process of the test's own, as [`ForkedChild::start`] is.
#[track_caller]
pub fn in_child_that_dies(body: impl FnOnce()) {
    let status = ForkedChild::start(|| {
        body();
        die();
    })
    .ended();
    assert_eq!(status.signal(), Some(libc::SIGKILL), "the child was to die by SIGKILL: {status}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::side::alone;

    #[test]
    fn a_child_dies_after_its_body() {
        alone(&[], || {
            let (mut reader, writer) = std::io::pipe().expect("a pipe");
            in_child_that_dies(|| {
                std::io::Write::write_all(&mut &writer, b"body").expect("a pipe takes bytes")
            });
            drop(writer);
            let mut written = String::new();
            std::io::Read::read_to_string(&mut reader, &mut written).expect("text");
            assert_eq!(written, "body");
        });
    }

    #[test]
    #[should_panic(expected = "was to die by SIGKILL")]
    fn a_body_that_panics_in_the_child_fails_the_test() {
        alone(&[], || in_child_that_dies(|| panic!("on purpose")));
    }
}
