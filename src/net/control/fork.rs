//! Descriptors and device mappings that forked children must not keep.
//!
//! A child has a copy of every descriptor, and the kernel ends a connection only when its last
//! descriptor is closed. With a child that outlives this process, such as a data loader, peers
//! would see this process's death only when the child ends. So a handler in every child replaces
//! its copies by a descriptor that does nothing.
//!
//! Closing them is not enough: the child's copies of the objects would close the numbers again,
//! which may belong to other files by then. Shutting them down would end the connection of the
//! parent.
//!
//! A mapping keeps a file open like a descriptor. libibverbs maps RDMA devices (doorbells, and with
//! some drivers queues) and does not report where. The child, which has one thread, finds the
//! mappings by file in `/proc/self/maps` and replaces them by inaccessible pages. Its copies of the
//! objects then unmap only those. Mappings of the same device by other libraries are replaced too.
//! So when this process ends, the kernel destroys its queue pairs, and they acknowledge nothing any
//! more.
//!
//! The handler may only call async-signal-safe functions, and any lock may be held by a thread that
//! does not exist in the child. So the tables of descriptors have no lock, and nothing is
//! allocated. `vfork` and `posix_spawn` do not run the handler, but exec closes all of these
//! descriptors and mappings. A child made by a direct `clone` system call keeps all.

#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Descriptors above this number stay with the child. The usual limit of a process is lower
/// (`fs.nr_open`).
const MOST: usize = 1 << 20;

static UNSHARED: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];
/// Words of the table that may have bits set.
static WORDS: AtomicUsize = AtomicUsize::new(0);
/// The id of this process; 0 if not read yet.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The most files whose mappings are removed: more than there are devices.
const MOST_MAPPED: usize = 256;
const NONE: RawFd = -1;
static MAPPED: [AtomicI32; MOST_MAPPED] = [const { AtomicI32::new(NONE) }; MOST_MAPPED];

/// While it lives, forked children do not keep the descriptor. Drop it before the descriptor is
/// closed.
#[derive(Debug)]
pub struct CloseOnFork(RawFd);

impl CloseOnFork {
    /// Keeps `fd` from forked children from now on.
    pub fn new(fd: RawFd) -> Self {
        has_handler();
        if let Some((word, bit)) = place(fd) {
            UNSHARED[word].fetch_or(bit, Ordering::Relaxed);
            WORDS.fetch_max(word + 1, Ordering::Relaxed);
        }
        Self(fd)
    }

    /// [`Self::new`], and also keeps mappings of the file of `fd` from forked children.
    pub fn with_mappings(fd: RawFd) -> Self {
        let take = |place: &&AtomicI32| {
            place.compare_exchange(NONE, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if MAPPED.iter().find(take).is_none() {
            log::debug!(
                "{MOST_MAPPED} devices are open already: forked children keep mappings of further ones"
            );
        }
        Self::new(fd)
    }
}

impl Drop for CloseOnFork {
    fn drop(&mut self) {
        if let Some((word, bit)) = place(self.0) {
            UNSHARED[word].fetch_and(!bit, Ordering::Relaxed);
        }
        let free = |place: &&AtomicI32| {
            place.compare_exchange(self.0, NONE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let _ = MAPPED.iter().find(free);
    }
}

fn place(fd: RawFd) -> Option<(usize, u64)> {
    let fd = usize::try_from(fd).ok().filter(|fd| *fd < MOST)?;
    Some((fd / 64, 1 << (fd % 64)))
}

/// Whether [`leave`] runs in forked children.
fn has_handler() -> bool {
    static HAS_HANDLER: OnceLock<bool> = OnceLock::new();
    *HAS_HANDLER.get_or_init(|| {
        // SAFETY: a function that lives as long as the process (the library is never unmapped) and
        // does what such handlers may.
        let has_handler = unsafe { libc::pthread_atfork(None, None, Some(leave)) } == 0;
        if !has_handler {
            log::debug!("no memory for a fork handler: forked children keep sockets and devices");
        }
        has_handler
    })
}

/// The id of this process. Asks the kernel once per process: connection set-up needs the id dozens
/// of times.
pub fn process_id() -> u32 {
    match PROCESS.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            if has_handler() {
                PROCESS.store(id, Ordering::Relaxed);
            }
            id
        }
        id => id,
    }
}

/// A file, by the device number of its file system and its inode number.
type FileId = (u64, u64);

/// A line of `/proc/self/maps`.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    begin: usize,
    end: usize,
    file: FileId,
}

impl Mapping {
    /// Parses `begin-end permissions offset major:minor inode path`; the path may be truncated.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        let mut addresses = fields.next()?.split(|byte| *byte == b'-');
        let (begin, end) = (number(addresses.next()?, 16)?, number(addresses.next()?, 16)?);
        let mut device = fields.nth(2)?.split(|byte| *byte == b':');
        let (major, minor) = (number(device.next()?, 16)?, number(device.next()?, 16)?);
        let inode = number(fields.next()?, 10)?;
        let device = libc::makedev(u32::try_from(major).ok()?, u32::try_from(minor).ok()?);
        Some(Self { begin: begin as usize, end: end as usize, file: (device, inode) })
    }
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// Removes the mappings of the marked files, in a forked child that still has the descriptors.
fn leave_mappings() {
    let mut files: [FileId; MOST_MAPPED] = [(0, 0); MOST_MAPPED];
    let mut count = 0;
    for fd in
        MAPPED.iter().map(|place| place.swap(NONE, Ordering::Relaxed)).filter(|fd| *fd != NONE)
    {
        if let Some(file) = file_of(fd) {
            files[count] = file;
            count += 1;
        }
    }
    if count > 0 {
        cover_mappings(&files[..count]);
    }
}

/// The file of a descriptor, if it has an entry in a file system: other files share their numbers.
fn file_of(fd: RawFd) -> Option<FileId> {
    // SAFETY: a struct of numbers, for which zero is valid.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a whole struct.
    let rc = unsafe { libc::fstat(fd, &raw mut about) };
    let is_of_file_system = matches!(about.st_mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFREG);
    (rc == 0 && is_of_file_system).then_some((about.st_dev, about.st_ino))
}

/// Replaces the mappings of these files by inaccessible pages. Without `/proc` the child keeps
/// them.
fn cover_mappings(files: &[FileId]) {
    // SAFETY: a C string.
    let maps = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if maps < 0 {
        return;
    }
    let mut buffer = [0_u8; 4096];
    // The beginning of the current line, which has everything needed.
    let (mut line, mut length) = ([0_u8; 128], 0);
    loop {
        // SAFETY: a buffer of this size.
        let read = unsafe { libc::read(maps, buffer.as_mut_ptr().cast(), buffer.len()) };
        let Some(bytes) =
            usize::try_from(read).ok().filter(|read| *read > 0).and_then(|read| buffer.get(..read))
        else {
            break;
        };
        for byte in bytes {
            if *byte != b'\n' {
                if let Some(place) = line.get_mut(length) {
                    (*place, length) = (*byte, length + 1);
                }
                continue;
            }
            if let Some(Mapping { begin, end, .. }) =
                Mapping::parse(&line[..length]).filter(|mapping| files.contains(&mapping.file))
            {
                let flags =
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
                // SAFETY: a mapping of a device as a whole, in a child, which must not use the
                // device.
                unsafe {
                    libc::mmap(
                        begin as *mut libc::c_void,
                        end - begin,
                        libc::PROT_NONE,
                        flags,
                        -1,
                        0,
                    )
                };
            }
            length = 0;
        }
    }
    // SAFETY: opened above, owned by nobody else.
    unsafe { libc::close(maps) };
}

/// Runs in a forked child.
extern "C" fn leave() {
    PROCESS.store(0, Ordering::Relaxed);
    leave_mappings();
    let words = WORDS.load(Ordering::Relaxed).min(UNSHARED.len());
    if UNSHARED[..words].iter().all(|word| word.load(Ordering::Relaxed) == 0) {
        return;
    }
    // SAFETY: plain numbers, here and below.
    let make_nothing = || unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    let mut nothing = make_nothing();
    let mut is_kept = false;
    for (index, word) in UNSHARED[..words].iter().enumerate() {
        // The child has no such descriptors from here on. It may close them, reuse their numbers,
        // and fork again.
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = (index * 64) as RawFd + bits.trailing_zeros() as RawFd;
            bits &= bits - 1;
            if nothing < 0 {
                // No descriptor is free, so close one of these. If the new one gets its number, it
                // stays there.
                // SAFETY: one of our own descriptors, whose number is taken again here or below.
                unsafe { libc::close(fd) };
                nothing = make_nothing();
                is_kept = nothing == fd;
            }
            if nothing != fd {
                // SAFETY: the number is that of one of our own descriptors, whose object in the
                // child closes it later.
                unsafe { libc::dup3(nothing, fd, libc::O_CLOEXEC) };
            }
        }
    }
    if !is_kept {
        // SAFETY: made above, owned by nobody else.
        unsafe { libc::close(nothing) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_child_keeps_no_marked_descriptor_and_its_parent_does() {
        let (mut here, mut marked) = UnixStream::pair().expect("a pair");
        let (mut other, plain) = UnixStream::pair().expect("a pair");
        let mark = CloseOnFork::new(marked.as_raw_fd());
        let (mut done, child_end) = UnixStream::pair().expect("a pair");
        // SAFETY: the child continues alone with this one thread, and only waits to be killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a valid buffer of one byte; then plain numbers.
            unsafe { libc::write(child_end.as_raw_fd(), c"x".as_ptr().cast(), 1) };
            loop {
                // SAFETY: plain numbers.
                unsafe { libc::pause() };
            }
        }
        done.read_exact(&mut [0]).expect("the child runs");
        marked.write_all(b"1").expect("the parent's is open");
        here.read_exact(&mut [0]).expect("and works");
        drop(mark);
        drop((marked, plain));
        here.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("a timeout");
        let closed = here.read(&mut [0]);
        other.set_nonblocking(true).expect("non-blocking");
        let kept = other.read(&mut [0]);
        // SAFETY: our own child, which is waited for once.
        unsafe {
            (libc::kill(child, libc::SIGKILL), libc::waitpid(child, std::ptr::null_mut(), 0))
        };
        assert_eq!(closed.expect("no error"), 0, "closed with the parent's");
        assert_eq!(kept.expect_err("the child has it").kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn a_child_that_can_open_nothing_keeps_no_marked_descriptor_either() {
        let pairs = [(); 2].map(|()| UnixStream::pair().expect("a pair"));
        let marks = [&pairs[0].1, &pairs[1].1].map(|marked| CloseOnFork::new(marked.as_raw_fd()));
        let (mut done, child_end) = UnixStream::pair().expect("a pair");
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: valid structs, here and below. cargo-nextest gives this test a process of its
        // own; elsewhere the limit holds for a moment.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
        let low = libc::rlimit { rlim_cur: 64, ..limit };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const low) }, 0);
        let fill: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        // SAFETY: the child continues alone with this one thread, and only waits to be killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a valid buffer of one byte; then plain numbers.
            unsafe { libc::write(child_end.as_raw_fd(), c"x".as_ptr().cast(), 1) };
            loop {
                // SAFETY: plain numbers.
                unsafe { libc::pause() };
            }
        }
        drop(fill);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        done.read_exact(&mut [0]).expect("the child runs");
        drop(marks);
        let closed = pairs.map(|(mut here, marked)| {
            drop(marked);
            here.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("a timeout");
            here.read(&mut [0])
        });
        // SAFETY: our own child, which is waited for once.
        unsafe {
            (libc::kill(child, libc::SIGKILL), libc::waitpid(child, std::ptr::null_mut(), 0))
        };
        assert_eq!(closed.map(|read| read.expect("closed with the parent's")), [0, 0]);
    }

    /// Maps this file, marked or not. Returns whether a child has the mapping.
    fn child_has_mapping(file: &std::fs::File, is_marked: bool) -> bool {
        let _mark = is_marked.then(|| CloseOnFork::with_mappings(file.as_raw_fd()));
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        // SAFETY: the child continues alone with this one thread, and calls nothing but the system.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the system looks whether the page can be read; then a plain number.
            unsafe {
                libc::access(page.cast(), libc::F_OK);
                libc::_exit(libc::c_int::from(*libc::__errno_location() == libc::EFAULT));
            }
        }
        let mut status = 0;
        // SAFETY: our own child, which is waited for once; then the mapping made above, which this
        // process still has.
        let here = unsafe {
            libc::waitpid(child, &raw mut status, 0);
            (libc::msync(page, 4096, libc::MS_ASYNC), libc::munmap(page, 4096))
        };
        assert_eq!(here, (0, 0), "this process keeps it");
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    #[test]
    fn a_child_gets_no_mapping_of_a_marked_file_and_others_it_gets() {
        let folder = testkit::Scratch::new();
        let [marked, other] = ["marked", "other"].map(|name| {
            let path = folder.write(name, "");
            let file =
                std::fs::File::options().read(true).write(true).open(path).expect("it is there");
            file.set_len(4096).expect("room");
            file
        });
        let mark = CloseOnFork::with_mappings(marked.as_raw_fd());
        assert_eq!(
            [child_has_mapping(&marked, false), child_has_mapping(&other, false)],
            [false, true]
        );
        drop(mark);
        assert_eq!(
            [child_has_mapping(&marked, false), child_has_mapping(&marked, true)],
            [true, false]
        );
    }

    #[test]
    fn a_line_of_the_kernels_list_of_mappings_is_read() {
        let line = "7ff379ee8000-7ff379eeb000 rw-s 0000f000 00:05 101                        /dev/infiniband/uverbs0";
        let read = Mapping {
            begin: 0x7ff3_79ee_8000,
            end: 0x7ff3_79ee_b000,
            file: (libc::makedev(0, 5), 101),
        };
        assert_eq!(Mapping::parse(line.as_bytes()).as_ref(), Some(&read));
        assert_eq!(Mapping::parse(&line.as_bytes()[..60]), Some(read), "the path is not needed");
        assert_eq!(Mapping::parse(b"7ff379ee8000-7ff379eeb000 rw-s"), None);
    }

    #[test]
    fn a_forked_child_has_an_id_of_its_own() {
        assert_eq!(process_id(), std::process::id());
        // SAFETY: the child continues alone with this one thread, and calls nothing but the system.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_right = [process_id(), process_id()] == [std::process::id(); 2];
            // SAFETY: a plain number.
            unsafe { libc::_exit(libc::c_int::from(!is_right)) };
        }
        let mut status = -1;
        // SAFETY: our own child, which is waited for once.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0, "it takes its parent's id for its own");
    }

    #[test]
    fn a_child_may_use_the_number_for_another_file_and_fork_again() {
        let (mut here, there) = UnixStream::pair().expect("a pair");
        let (marked, _peer) = UnixStream::pair().expect("a pair");
        let _mark = CloseOnFork::new(marked.as_raw_fd());
        // SAFETY: the child continues alone with this one thread, calls nothing but the system, and
        // ends below; so does its own.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: plain numbers, and a valid buffer of one byte.
            unsafe {
                libc::dup2(there.as_raw_fd(), marked.as_raw_fd());
                let grandchild = libc::fork();
                if grandchild == 0 {
                    libc::write(marked.as_raw_fd(), c"x".as_ptr().cast(), 1);
                } else {
                    libc::waitpid(grandchild, std::ptr::null_mut(), 0);
                }
                libc::_exit(0);
            }
        }
        // SAFETY: our own child, which is waited for once.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        drop(there);
        assert_eq!(here.read(&mut [0]).expect("no error"), 1, "the grandchild has lost its file");
    }
}
