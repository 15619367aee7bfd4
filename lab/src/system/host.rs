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

/// The number of the user that this process acts as.
pub fn user_id() -> u32 {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::geteuid() }
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

/// Bytes that this process may lock. `None`: there is no limit.
pub fn memlock_limit() -> Option<u64> {
    limit(libc::RLIMIT_MEMLOCK)
}

/// The soft limit of a resource. `None`: there is none, or the system does not say.
pub fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is writable.
    let known = unsafe { libc::getrlimit(resource, &raw mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The last MiB of the kernel's log; `None` if this process may not read it.
pub fn kernel_log() -> Option<String> {
    const READ_ALL: libc::c_int = 3;
    let mut text = vec![0_u8; 1 << 20];
    // SAFETY: the buffer can be written, and its size is told.
    let length = unsafe { libc::klogctl(READ_ALL, text.as_mut_ptr().cast(), text.len() as libc::c_int) };
    text.truncate(usize::try_from(length).ok()?);
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Has the kernel kill this process when the thread that started it ends. For use between fork
/// and exec: a plain system call.
pub fn die_with_parent() -> std::io::Result<()> {
    // SAFETY: prctl with integer arguments.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Lets the descriptor survive exec. For use between fork and exec: a plain system call.
pub fn keep_across_exec(descriptor: i32) -> std::io::Result<()> {
    // SAFETY: fcntl with integer arguments on a descriptor that the caller holds open.
    match unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Has C code's stdout written line by line: NCCL's own logger uses it, and a process that is killed
/// writes no buffers.
pub fn line_buffered_stdout() {
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

/// How many CPUs' worth of work the machine does, looked at for a moment.
pub fn busy_cpus(moment: Duration) -> Option<f64> {
    let (busy, total) = cpu_ticks(&std::fs::read_to_string("/proc/stat").ok()?)?;
    std::thread::sleep(moment);
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let (busy_now, total_now) = cpu_ticks(&text)?;
    let cpus = text.lines().filter(|line| line.starts_with("cpu")).count().saturating_sub(1);
    let passed = total_now.checked_sub(total).filter(|passed| *passed > 0)?;
    Some(cpus as f64 * busy_now.saturating_sub(busy) as f64 / passed as f64)
}

/// Ticks of work, and of everything, since the machine started: `cpu user nice system idle iowait
/// irq softirq steal …`.
fn cpu_ticks(stat: &str) -> Option<(u64, u64)> {
    let ticks: Vec<u64> =
        stat.lines().next()?.split_ascii_whitespace().skip(1).take(8).filter_map(|tick| tick.parse().ok()).collect();
    let total: u64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((total - idle, total))
}

/// Memory of this process that is in RAM; bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resident {
    /// All of it.
    pub all: u64,
    /// The part that lies in shared memory, as the state of the software device does.
    pub shared: u64,
}

/// What this process has in RAM now, as the kernel counts it: to some dozens of pages.
///
/// # Errors
/// [`Error::Io`] if the system does not say, [`Error::Unreadable`] if it is not understood.
pub fn resident() -> Result<Resident> {
    let status =
        std::fs::read_to_string("/proc/self/status").map_err(|e| Error::io("cannot read /proc/self/status", e))?;
    parse_resident(&status).ok_or_else(|| Error::Unreadable("/proc/self/status does not say VmRSS and RssShmem".into()))
}

fn parse_resident(status: &str) -> Option<Resident> {
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim_start_matches(':').trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
    };
    Some(Resident { all: bytes("VmRSS")?, shared: bytes("RssShmem")? })
}

/// A duration in seconds for a message.
pub fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_told_apart() {
        let stat = "cpu  10 1 20 300 5 0 2 3 0 0\ncpu0 5 0 10 150 2 0 1 1 0 0\n";
        assert_eq!(cpu_ticks(stat), Some((36, 341)));
        assert_eq!(cpu_ticks("cpu 1 2"), None);
        assert!(busy_cpus(Duration::from_millis(30)).is_some_and(|busy| busy >= 0.0));
    }

    #[test]
    fn resident_memory_is_read() {
        let status = "Name:\tx\nVmRSS:\t    5120 kB\nRssAnon:\t 12 kB\nRssShmem:\t       4 kB\n";
        assert_eq!(parse_resident(status), Some(Resident { all: 5120 << 10, shared: 4096 }));
        assert_eq!(parse_resident("VmRSS:\t5120 kB\n"), None);
        assert!(resident().is_ok_and(|now| now.all > now.shared));
    }
}
