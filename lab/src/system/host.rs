//! The few system calls this tool makes about its own processes.

use std::ffi::CStr;
use std::fmt::Write;
use std::fs;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
    // SAFETY: the buffer can be written, and its size is passed.
    let length =
        unsafe { libc::klogctl(READ_ALL, text.as_mut_ptr().cast(), text.len() as libc::c_int) };
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

/// Has C code's stdout written line by line: NCCL's own logger uses it, and a process that is
/// killed writes no buffers.
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
    let (busy, total) = cpu_ticks(&fs::read_to_string("/proc/stat").ok()?)?;
    std::thread::sleep(moment);
    let text = fs::read_to_string("/proc/stat").ok()?;
    let (busy_now, total_now) = cpu_ticks(&text)?;
    let cpus = text.lines().filter(|line| line.starts_with("cpu")).count().saturating_sub(1);
    let passed = total_now.checked_sub(total).filter(|passed| *passed > 0)?;
    Some(cpus as f64 * busy_now.saturating_sub(busy) as f64 / passed as f64)
}

/// How often the kernel has taken the processor away from this thread.
pub fn involuntary_switches() -> i64 {
    // SAFETY: all zeros is a value of the type.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it writes one rusage, and fails for no thread of this process.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw
}

/// Ticks in which another virtual machine had the CPU, or any of this machine where none is named.
pub fn stolen_ticks(cpu: Option<usize>) -> Option<u64> {
    let name = cpu.map_or_else(|| "cpu".into(), |cpu| format!("cpu{cpu}"));
    let text = fs::read_to_string("/proc/stat").ok()?;
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.nth(7)?.parse().ok())?)
}

/// Ticks of work, and of everything, since the machine started: `cpu user nice system idle iowait
/// irq softirq steal …`.
fn cpu_ticks(stat: &str) -> Option<(u64, u64)> {
    let ticks: Vec<u64> = stat
        .lines()
        .next()?
        .split_ascii_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|tick| tick.parse().ok())
        .collect();
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
    let status = fs::read_to_string("/proc/self/status")
        .map_err(|e| Error::io("cannot read /proc/self/status", e))?;
    parse_resident(&status).ok_or_else(|| {
        Error::Unreadable("/proc/self/status does not say VmRSS and RssShmem".into())
    })
}

fn parse_resident(status: &str) -> Option<Resident> {
    let bytes = |name: &str| kilobytes(status, name);
    Some(Resident { all: bytes("VmRSS")?, shared: bytes("RssShmem")? })
}

/// The value of the line `name: N kB` of a file in `/proc`, in bytes.
pub(crate) fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// A duration in seconds for a message.
pub fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// One line of `/proc/self/maps` that has a file behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    start: u64,
    end: u64,
    inode: u64,
    /// The file, as the kernel names it.
    pub path: PathBuf,
}

/// The file mappings of this process, at one moment.
#[derive(Debug)]
pub struct Maps(Vec<Mapping>);

impl Maps {
    /// Reads them now.
    ///
    /// # Errors
    /// [`Error::Io`] if `/proc` is not mounted.
    pub fn read() -> Result<Self> {
        let text = fs::read_to_string("/proc/self/maps")
            .map_err(|source| Error::io("cannot read /proc/self/maps", source))?;
        Ok(Self(text.lines().filter_map(parse_line).collect()))
    }

    /// The mapping that holds `address`, if a file is behind it.
    pub fn at(&self, address: usize) -> Option<&Mapping> {
        let address = address as u64;
        self.0.iter().find(|m| m.start <= address && address < m.end)
    }

    /// Whether `address` lies in a mapping of the file at `path` (the same inode, whatever the
    /// name).
    pub fn is_in(&self, address: usize, path: &Path) -> bool {
        self.at(address).is_some_and(|mapping| mapping.is(path))
    }

    /// The distinct mapped files whose name starts with `prefix`.
    pub fn files_named(&self, prefix: &str) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self
            .0
            .iter()
            .filter(|m| {
                m.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
            })
            .map(|m| m.path.clone())
            .collect();
        files.sort();
        files.dedup();
        files
    }
}

/// The addresses that are mapped in this process, from files or not.
///
/// # Errors
/// [`Error::Io`] if `/proc` is not mounted.
pub fn ranges() -> Result<Vec<std::ops::Range<usize>>> {
    let text = fs::read_to_string("/proc/self/maps")
        .map_err(|source| Error::io("cannot read /proc/self/maps", source))?;
    let range = |line: &str| {
        let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
        Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    Ok(text.lines().filter_map(range).collect())
}

impl Mapping {
    /// Whether the file behind the mapping is the one at `path`.
    pub fn is(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|meta| meta.ino() == self.inode) && path.file_name().is_some()
    }
}

/// `start-end perms offset major:minor inode path`
fn parse_line(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let inode = words.nth(3)?.parse().ok()?;
    let path = line.get(line.find('/')?..)?;
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        inode,
        path: PathBuf::from(path),
    })
}

/// All threads of a process at one moment.
#[derive(Debug)]
pub struct Threads {
    at: Instant,
    threads: Vec<Thread>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Thread {
    id: String,
    name: String,
    /// As in `/proc/PID/stat`.
    state: char,
    /// The function of the kernel that it waits in; empty: none, or the kernel does not tell.
    place: String,
    times: Times,
}

/// Since the thread began. Zero where the kernel does not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Times {
    ran: Duration,
    /// It could run, and had no processor. The kernel counts each such wait when it is over.
    waited: Duration,
}

impl Threads {
    /// Those of process `pid` now; none if it has ended.
    pub fn read(pid: u32) -> Self {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let mut threads: Vec<Thread> =
            tasks.filter_map(|task| Thread::read(&task.path())).collect();
        // The first has the lowest number, but where numbers have begun again.
        threads.sort_by_key(|thread| thread.id.parse::<u32>().unwrap_or(u32::MAX));
        Self { at: Instant::now(), threads }
    }

    /// Where each is, and what it has had of the time since `earlier`, as part of a sentence.
    pub fn since(&self, earlier: &Self) -> String {
        let mut text = format!(
            "threads in the last {:.1} s",
            self.at.duration_since(earlier.at).as_secs_f64()
        );
        for (place, thread) in self.threads.iter().enumerate() {
            let before = earlier.threads.iter().find(|before| before.id == thread.id);
            let before = before.map_or_else(Times::default, |before| before.times);
            let [ran, waited] = [
                thread.times.ran.saturating_sub(before.ran).as_secs_f64(),
                thread.times.waited.saturating_sub(before.waited).as_secs_f64(),
            ];
            let (colon, name, now) =
                (if place == 0 { ':' } else { ';' }, &thread.name, thread.now());
            // A String takes everything.
            let _ = write!(
                text,
                "{colon} {name} ran {ran:.2} s, waited {waited:.2} s for a processor, now {now}"
            );
        }
        text
    }
}

impl Thread {
    fn read(task: &Path) -> Option<Self> {
        let read = |name: &str| fs::read_to_string(task.join(name));
        let stat = read("stat").ok()?;
        // The name before the state may hold any characters.
        let state = stat.rsplit_once(") ")?.1.chars().next()?;
        Some(Self {
            id: task.file_name()?.to_string_lossy().into_owned(),
            name: read("comm").ok()?.trim_end().to_owned(),
            state,
            place: read("wchan").ok().filter(|place| place != "0").unwrap_or_default(),
            times: read("schedstat").ok().and_then(|text| Times::parse(&text)).unwrap_or_default(),
        })
    }

    fn now(&self) -> String {
        match (self.state, self.place.as_str()) {
            ('R', _) => "can run".into(),
            ('T' | 't', _) => "is stopped".into(),
            (state, "") => format!("sleeps ({state})"),
            (state, place) => format!("sleeps in {place} ({state})"),
        }
    }
}

impl Times {
    /// Out of a line of `/proc/PID/task/TID/schedstat`: nanoseconds that it ran, and that it
    /// waited.
    fn parse(text: &str) -> Option<Self> {
        let mut words =
            text.split_whitespace().map(|word| word.parse().ok().map(Duration::from_nanos));
        Some(Self { ran: words.next()??, waited: words.next()?? })
    }
}

/// `e_machine` of the ELF header: what this program is for.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Why the file at `path` cannot be loaded here, with what helps; `None` if nothing is known to be
/// in the way.
///
/// # Errors
/// [`Error::Io`] if it cannot be read.
pub fn obstacle(path: &Path) -> Result<Option<String>> {
    let bytes = fs::read(path)
        .map_err(|source| Error::io(format!("cannot read {}", path.display()), source))?;
    Ok(obstacle_in(&bytes, glibc_here()))
}

/// Whether the file at `path` is an ELF file for another processor.
pub fn is_for_another_processor(path: &Path) -> bool {
    let mut head = [0; 20];
    let is_read = File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_ok();
    is_read && elf_machine(&head).is_some_and(|machine| machine != MACHINE)
}

/// `None`: it is no ELF file.
fn elf_machine(bytes: &[u8]) -> Option<u16> {
    let word = bytes.get(18..20).filter(|_| bytes.starts_with(b"\x7fELF"))?;
    Some(u16::from_le_bytes([word[0], word[1]]))
}

fn obstacle_in(bytes: &[u8], here: Option<(u32, u32)>) -> Option<String> {
    let machine = elf_machine(bytes)?;
    if machine != MACHINE {
        let this = std::env::consts::ARCH;
        return Some(format!(
            "it is for another processor (ELF machine {machine}): install the package for {this}"
        ));
    }
    let (needed, here) = (glibc_needed(bytes)?, here?);
    (needed > here).then(|| {
        let [needed, here] = [needed, here].map(|(major, minor)| format!("{major}.{minor}"));
        format!("it needs glibc {needed} and this system has {here}: install the released package, which needs 2.17")
    })
}

/// The highest version that the file asks for.
fn glibc_needed(bytes: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_";
    let starts = bytes.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    starts.filter_map(|(at, _)| version(&bytes[at + MARK.len()..])).max()
}

/// `2.34` at the beginning of `bytes`.
fn version(bytes: &[u8]) -> Option<(u32, u32)> {
    let end = bytes.iter().position(|byte| !(byte.is_ascii_digit() || *byte == b'.'))?;
    let (major, rest) = std::str::from_utf8(&bytes[..end]).ok()?.split_once('.')?;
    Some((major.parse().ok()?, rest.split('.').next()?.parse().ok()?))
}

fn glibc_here() -> Option<(u32, u32)> {
    // SAFETY: it returns a C string that lives as long as the process.
    let text = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    version(text.to_bytes_with_nul())
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

    #[test]
    fn a_line_with_a_file() {
        let mapping = parse_line(
            "7f00aa000000-7f00aa021000 r-xp 00001000 fe:01 4242                       /usr/lib/a b.so",
        );
        assert_eq!(
            mapping,
            Some(Mapping {
                start: 0x7f00_aa00_0000,
                end: 0x7f00_aa02_1000,
                inode: 4242,
                path: "/usr/lib/a b.so".into()
            })
        );
        assert_eq!(parse_line("7f00aa000000-7f00aa021000 rw-p 00000000 00:00 0 "), None);
    }

    #[test]
    fn this_very_function_is_in_this_very_file() -> Result<()> {
        let maps = Maps::read()?;
        let here = a_line_with_a_file as *const () as usize;
        let exe = std::env::current_exe().map_err(|e| Error::io("current_exe", e))?;
        assert!(maps.is_in(here, &exe));
        assert!(!maps.is_in(here, Path::new("/bin/sh")));
        assert!(!maps.files_named("libc.so").is_empty());
        Ok(())
    }

    fn thread(state: char, place: &str, ran_ms: u64, waited_ms: u64) -> Thread {
        let times =
            Times { ran: Duration::from_millis(ran_ms), waited: Duration::from_millis(waited_ms) };
        Thread { id: "7".into(), name: "worker".into(), state, place: place.into(), times }
    }

    #[test]
    fn what_a_thread_has_had_is_told_since_the_earlier_moment() {
        let at = Instant::now();
        let earlier = Threads { at, threads: vec![thread('S', "", 1000, 2000)] };
        let later = at + Duration::from_secs(10);
        let text = |state, place| {
            Threads { at: later, threads: vec![thread(state, place, 1100, 11_000)] }.since(&earlier)
        };
        assert_eq!(
            text('R', ""),
            "threads in the last 10.0 s: worker ran 0.10 s, waited 9.00 s for a processor, now can run"
        );
        assert!(text('S', "futex_wait").ends_with("now sleeps in futex_wait (S)"));
        assert!(text('T', "").ends_with("now is stopped"));
    }

    #[test]
    fn the_threads_of_a_process_are_read() {
        assert_eq!(
            Times::parse("1000 2500 3\n"),
            Some(Times { ran: Duration::from_micros(1), waited: Duration::from_nanos(2500) })
        );
        assert_eq!(Times::parse("none"), None);
        let read = Threads::read(std::process::id());
        assert!(read.threads.iter().any(|thread| thread.state == 'R'), "this one runs: {read:?}");
        assert!(Threads::read(u32::MAX).threads.is_empty());
    }

    fn file(machine: u16, text: &[u8]) -> Vec<u8> {
        [b"\x7fELF", &[0; 14][..], &machine.to_le_bytes(), text].concat()
    }

    #[test]
    fn the_highest_glibc_that_a_file_asks_for_is_what_it_needs() {
        let needs = file(MACHINE, b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0GLIBC_PRIVATE\0");
        assert_eq!(glibc_needed(&needs), Some((2, 34)));
        assert_eq!(obstacle_in(&needs, Some((2, 34))), None);
        let said = obstacle_in(&needs, Some((2, 9))).expect("too old");
        assert!(said.starts_with("it needs glibc 2.34 and this system has 2.9: install"), "{said}");
        assert!(glibc_here().is_some_and(|here| here >= (2, 17)));
    }

    #[test]
    fn a_file_for_another_processor_is_told() {
        let said = obstacle_in(&file(21, b"\0GLIBC_2.17\0"), Some((2, 34))).expect("another one");
        assert!(
            said.contains("another processor (ELF machine 21): install the package for "),
            "{said}"
        );
        assert_eq!(obstacle_in(b"short", Some((2, 34))), None);
        assert_eq!(
            obstacle_in(b"a text that is longer than a header", Some((2, 34))),
            None,
            "no ELF file"
        );
    }
}
