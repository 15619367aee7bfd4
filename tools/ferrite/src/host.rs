//! The few system calls this tool makes about its own processes.

use std::time::Duration;

use crate::error::{Error, Result};

/// The CPUs this process may run on, in ascending order.
///
/// # Errors
/// [`Error::Io`] if the system does not say.
pub fn cpus() -> Result<Vec<usize>> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is writable and its own size is passed.
    let code = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if code != 0 {
        return Err(Error::last_os("cannot read the CPU affinity"));
    }
    // SAFETY: the index is below CPU_SETSIZE, so inside the set.
    let allowed = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    Ok((0..libc::CPU_SETSIZE as usize).filter(allowed).collect())
}

/// Keeps this thread, and the threads it starts from now on, on one CPU.
///
/// # Errors
/// [`Error::Io`] if the CPU does not exist or is not allowed.
pub fn pin(cpu: usize) -> Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(Error::Usage(format!("there is no CPU {cpu}")));
    }
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the index is below CPU_SETSIZE (checked above).
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is readable and its own size is passed.
    let code = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if code != 0 {
        return Err(Error::last_os(format!("cannot pin to CPU {cpu}")));
    }
    Ok(())
}

/// Raises the soft limit of open files to the hard one: a thousand connections need some thousand
/// sockets and queue pairs.
pub fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is writable.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the structure is readable; failing leaves the old limit.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

/// Has the kernel kill this process when the thread that started it ends. For use between fork
/// and exec: a plain system call.
pub(crate) fn die_with_parent() -> std::io::Result<()> {
    // SAFETY: prctl with integer arguments.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Lets the descriptor survive exec. For use between fork and exec: a plain system call.
pub(crate) fn keep_across_exec(descriptor: i32) -> std::io::Result<()> {
    // SAFETY: fcntl with integer arguments on a descriptor that the caller holds open.
    match unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Has C code's stdout written line by line: NCCL's own logger uses it, and a process that is killed
/// writes no buffers.
pub(crate) fn line_buffered_stdout() {
    unsafe extern "C" {
        static stdout: *mut libc::FILE;
    }
    // SAFETY: the C library's own stream; setvbuf may be called before the first output, and no
    // C code has run here yet. The library finds its own buffer.
    unsafe { libc::setvbuf(stdout, std::ptr::null_mut(), libc::_IOLBF, 0) };
}

/// Whether stderr is a terminal.
pub fn stderr_is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stderr())
}

/// A duration in seconds for a message.
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
