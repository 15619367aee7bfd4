//! The shared file: finding or making it, its control lock, its storage.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::host::errno::{errno_text, last_errno};
use crate::limits::PROCS;
use crate::shm::layout::{self, FILE_BYTES, MAGIC, VERSION};
use crate::shm::record_lock::{CONTROL, helper_lock, is_locked, life_lock, pid_lock, set_lock};
use crate::shm::slots::{Header, PROC_ALIVE, ProcSlot};

/// The open, mapped file.
#[derive(Debug)]
pub(crate) struct SharedFile {
    fd: i32,
    path: PathBuf,
    base: *mut u8,
    /// The record locks belong to the open file, so threads need one of their own.
    threads: Mutex<()>,
}

// SAFETY: `base` points to a shared mapping that is never unmapped and is only accessed as atomics.
unsafe impl Send for SharedFile {}
// SAFETY: as above.
unsafe impl Sync for SharedFile {}

/// Only an attempt that failed is ever dropped; a fabric in use lives as long as the process.
impl Drop for SharedFile {
    fn drop(&mut self) {
        // SAFETY: mapped with this length and opened by `open`; nothing refers to them any more.
        unsafe {
            libc::munmap(self.base.cast(), FILE_BYTES);
            libc::close(self.fd);
        }
    }
}

/// Why there is no fabric: a sentence, and the errno to report.
pub(crate) type Failure = (String, i32);

/// Why a fabric cannot be looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unusable {
    /// There is no file, or nobody has it.
    Unused,
    OtherLayout,
    /// errno
    System(i32),
}

/// Holds the control lock.
#[derive(Debug)]
pub(crate) struct ControlLock<'a> {
    file: &'a SharedFile,
    _threads: MutexGuard<'a, ()>,
}

impl Drop for ControlLock<'_> {
    fn drop(&mut self) {
        set_lock(self.file.fd, CONTROL, libc::F_UNLCK, libc::F_OFD_SETLK);
    }
}

impl SharedFile {
    /// Opens the file that a live process keeps, or makes a new one. Returns with the control lock taken, which
    /// [`Self::assume_control`] turns into a guard.
    pub(crate) fn open(dir: &Path, name: &str) -> Result<Self, Failure> {
        let path = dir.join(name);
        let c_path = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| ("SOFTRNIC_SHM_DIR holds a zero byte".to_owned(), libc::EINVAL))?;
        loop {
            let fd = open_or_create(&c_path, &path)?;
            match fd.adopt(&c_path) {
                Ok(Some(base)) => {
                    return Ok(Self { fd: fd.keep(), path, base, threads: Mutex::new(()) });
                }
                Ok(None) => {}
                Err((what, code)) => {
                    let advice = match code {
                        libc::ENOSPC | libc::EDQUOT => "free some space there, or point SOFTRNIC_SHM_DIR elsewhere",
                        libc::EPROTO => "end its users, or set SOFTRNIC_FABRIC to another name",
                        _ => "point SOFTRNIC_SHM_DIR to a writable tmpfs",
                    };
                    let text = if code == libc::EPROTO { String::new() } else { format!(": {}", errno_text(code)) };
                    return Err((format!("cannot use {}: {what}{text}; {advice}", path.display()), code));
                }
            }
        }
    }

    /// Opens the file of a fabric that live processes use, to look at it.
    pub(crate) fn open_existing(path: &Path) -> Result<Self, Unusable> {
        let c_path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Unusable::System(libc::EINVAL))?;
        let fd = Descriptor::open(&c_path, 0).map_err(|code| match code {
            libc::ENOENT => Unusable::Unused,
            code => Unusable::System(code),
        })?;
        set_lock(fd.0, CONTROL, libc::F_WRLCK, libc::F_OFD_SETLKW);
        let is_used = is_locked(fd.0, life_lock(0), PROCS as i64);
        if !is_used || !is_same_file(fd.0, &c_path) {
            return Err(Unusable::Unused);
        }
        if !fd.has_our_layout(file_size(fd.0)) {
            return Err(Unusable::OtherLayout);
        }
        let base = fd.map(&c_path).map_err(Unusable::System)?;
        set_lock(fd.0, CONTROL, libc::F_UNLCK, libc::F_OFD_SETLK);
        Ok(Self { fd: fd.keep(), path: path.to_owned(), base, threads: Mutex::new(()) })
    }

    /// Whether `path` is a fabric of this version that some process uses.
    pub(crate) fn is_used(path: &Path) -> bool {
        let is_likely = path.metadata().is_ok_and(|found| found.is_file() && found.len() == FILE_BYTES as u64);
        is_likely && Self::open_existing(path).is_ok()
    }

    /// The guard for the lock that [`Self::open`] took.
    pub(crate) fn assume_control(&self) -> ControlLock<'_> {
        ControlLock { file: self, _threads: self.threads.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Takes the control lock; waits for other processes.
    pub(crate) fn control(&self) -> ControlLock<'_> {
        let guard = self.assume_control();
        set_lock(self.fd, CONTROL, libc::F_WRLCK, libc::F_OFD_SETLKW);
        guard
    }

    pub(crate) fn header(&self) -> &'static Header {
        // SAFETY: the header begins the mapping, has storage, and consists of atomics.
        unsafe { &*self.base.cast::<Header>() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the mapping begins.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Gives `[at, at + bytes)` storage, so that touching it can never raise SIGBUS.
    pub(crate) fn allocate(&self, at: usize, bytes: usize) -> Result<(), i32> {
        allocate(self.fd, at, bytes)
    }

    /// Returns the storage of `[at, at + bytes)`; it reads as zeros afterwards.
    pub(crate) fn release(&self, at: usize, bytes: usize) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: acts on our own descriptor; the caller no longer uses that range.
        unsafe { libc::fallocate(self.fd, mode, at as i64, bytes as i64) };
    }

    /// Whether another process holds the life lock of slot `index`.
    pub(crate) fn is_held(&self, index: usize) -> bool {
        is_locked(self.fd, life_lock(index), 1)
    }

    /// Whether a process copies GPU memory on behalf of the one in slot `index`, or of the one that was there before.
    pub(crate) fn is_helped(&self, index: usize) -> bool {
        is_locked(self.fd, helper_lock(index), 1)
    }

    /// Takes the life lock of slot `index` for this process.
    pub(crate) fn hold(&self, index: usize) -> bool {
        let is_ours = set_lock(self.fd, life_lock(index), libc::F_WRLCK, libc::F_OFD_SETLK);
        if is_ours {
            // Should it be lost, only the choice of a fabric by the session of its processes suffers.
            set_lock(self.fd, pid_lock(index), libc::F_WRLCK, libc::F_SETLK);
        }
        is_ours
    }

    /// Removes the name. The caller holds the control lock and is the last one alive.
    pub(crate) fn unlink(&self) {
        let Ok(path) = CString::new(self.path.as_os_str().as_bytes()) else { return };
        if is_same_file(self.fd, &path) {
            // SAFETY: `path` is a valid C string.
            unsafe { libc::unlink(path.as_ptr()) };
        }
    }

    /// For a forked child: lets go of the descriptor without touching the parent's locks.
    pub(crate) fn abandon(&self) {
        // SAFETY: the child uses this SharedFile no more.
        unsafe { libc::close(self.fd) };
    }
}

/// A descriptor that closes itself unless kept.
struct Descriptor(i32);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: owned by this value.
        unsafe { libc::close(self.0) };
    }
}

impl Descriptor {
    /// Opens the file, with these flags more; the error is an errno.
    fn open(path: &CString, flags: i32) -> Result<Self, i32> {
        let flags = flags | libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        // SAFETY: `path` is a valid C string.
        let fd = unsafe { libc::open(path.as_ptr(), flags, 0o600) };
        if fd < 0 { Err(last_errno()) } else { Ok(Self(fd)) }
    }

    fn keep(self) -> i32 {
        let fd = self.0;
        std::mem::forget(self);
        fd
    }

    /// With the control lock taken: checks what the file is. `None` means "look again" (it was stale or is gone).
    fn adopt(&self, path: &CString) -> Result<Option<*mut u8>, (String, i32)> {
        set_lock(self.0, CONTROL, libc::F_WRLCK, libc::F_OFD_SETLKW);
        if !is_same_file(self.0, path) {
            return Ok(None);
        }
        let size = file_size(self.0);
        if size == 0 {
            return match self.format(path) {
                Ok(base) => Ok(Some(base)),
                Err(code) => {
                    // SAFETY: `path` is a valid C string; under the control lock the file is ours alone.
                    unsafe { libc::unlink(path.as_ptr()) };
                    Err((format!("no room for {} KiB of shared memory", layout::TABLES_AT >> 10), code))
                }
            };
        }
        let in_use = is_locked(self.0, life_lock(0), PROCS as i64);
        if in_use && !self.has_our_layout(size) {
            let what =
                "it is in use by another version of softrnic, in this process or in others (or is no fabric at all)";
            return Err((what.to_owned(), libc::EPROTO));
        }
        if in_use {
            let base = self.map(path).map_err(|code| ("mmap failed".to_owned(), code))?;
            if any_alive(self.0, base) {
                return Ok(Some(base));
            }
            // SAFETY: mapped above with this length and not handed out.
            unsafe { libc::munmap(base.cast(), FILE_BYTES) };
        }
        // All its processes are dead or leaving: a process that still maps it keeps the old inode.
        // SAFETY: `path` is a valid C string.
        unsafe { libc::unlink(path.as_ptr()) };
        Ok(None)
    }

    /// Lays out an empty file.
    fn format(&self, path: &CString) -> Result<*mut u8, i32> {
        allocate(self.0, 0, layout::TABLES_AT)?;
        // SAFETY: acts on our own descriptor.
        if unsafe { libc::ftruncate(self.0, FILE_BYTES as i64) } != 0 {
            return Err(last_errno());
        }
        let base = self.map(path)?;
        // SAFETY: the mapping is page-aligned and its first 64 KiB have storage.
        let header = unsafe { &*base.cast::<Header>() };
        header.file_bytes.store(FILE_BYTES as u64, Release);
        header.version.store(VERSION, Release);
        header.next_pd.store(1, Release);
        header.magic.store(MAGIC, Release);
        Ok(base)
    }

    fn has_our_layout(&self, size: i64) -> bool {
        let mut words = [0u64; 3];
        let bytes = size_of_val(&words);
        // SAFETY: reads at most `bytes` into `words`.
        let got = unsafe { libc::pread(self.0, words.as_mut_ptr().cast(), bytes, 0) };
        got == bytes as isize && words == [MAGIC, VERSION, FILE_BYTES as u64] && size == FILE_BYTES as i64
    }

    /// Maps the file, whose name this is, by an open file of its own: a forked child keeps the mapping, and must not keep the
    /// locks with it. The caller holds the control lock, under which the name stays.
    fn map(&self, path: &CString) -> Result<*mut u8, i32> {
        let mapped = Self::open(path, 0)?;
        if !is_same_file(mapped.0, path) || !is_same_file(self.0, path) {
            return Err(libc::ESTALE);
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), FILE_BYTES, prot, libc::MAP_SHARED, mapped.0, 0) };
        if base == libc::MAP_FAILED { Err(last_errno()) } else { Ok(base.cast()) }
    }
}

fn open_or_create(c_path: &CString, path: &Path) -> Result<Descriptor, Failure> {
    Descriptor::open(c_path, libc::O_CREAT).map_err(|code| {
        let why = errno_text(code);
        (
            format!("cannot create {}: {why}; point SOFTRNIC_SHM_DIR to a directory that is writable", path.display()),
            code,
        )
    })
}

/// Whether a process that still takes part holds its life lock.
fn any_alive(fd: i32, base: *mut u8) -> bool {
    (0..PROCS).any(|i| {
        // SAFETY: the process table lies in the part of the file that always has storage.
        let slot = unsafe { &*base.add(layout::PROCS_AT).cast::<ProcSlot>().add(i) };
        slot.state.load(Acquire) == PROC_ALIVE && is_locked(fd, life_lock(i), 1)
    })
}

fn allocate(fd: i32, at: usize, bytes: usize) -> Result<(), i32> {
    loop {
        // SAFETY: acts on our own descriptor.
        match unsafe { libc::posix_fallocate(fd, at as i64, bytes as i64) } {
            0 => return Ok(()),
            libc::EINTR => {}
            code => return Err(code),
        }
    }
}

fn stat_of(fill: impl FnOnce(*mut libc::stat) -> i32) -> Option<libc::stat> {
    // SAFETY: all zeros is a valid stat.
    let mut stat = unsafe { std::mem::zeroed() };
    (fill(&mut stat) == 0).then_some(stat)
}

fn file_size(fd: i32) -> i64 {
    // SAFETY: fstat writes one stat.
    stat_of(|s| unsafe { libc::fstat(fd, s) }).map_or(0, |s| s.st_size)
}

/// Whether `path` still names what `fd` has open.
fn is_same_file(fd: i32, path: &CString) -> bool {
    // SAFETY: fstat writes one stat.
    let open = stat_of(|s| unsafe { libc::fstat(fd, s) });
    // SAFETY: lstat reads a valid C string and writes one stat.
    let named = stat_of(|s| unsafe { libc::lstat(path.as_ptr(), s) });
    matches!((open, named), (Some(a), Some(b)) if a.st_ino == b.st_ino && a.st_dev == b.st_dev)
}
