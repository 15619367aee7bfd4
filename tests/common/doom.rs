//! Processes that end as a crash ends them.

/// Ends this process as a crash would: nothing is closed or said.
pub(crate) fn vanish() {
    // SAFETY: ends here.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// Goes on in a child of this process until the child has ended; the child goes through `body` and then vanishes.
pub(crate) fn in_a_doomed_child(body: impl FnOnce()) {
    // SAFETY: the child goes on alone with this one thread; what it uses was made before or is made by itself.
    let child = unsafe { libc::fork() };
    if child == 0 {
        body();
        vanish();
    }
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
}
