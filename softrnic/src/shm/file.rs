//! The shared file: finding or making it, its control lock, its storage.

use std::ffi::CString;
use std::fs::{File, Metadata, OpenOptions};
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{io, ptr};

use crate::host::{errno_text, last_errno};
use crate::limits::{CQS, DEVICES, JOBS, MRS, PORTS, PROCS, QPS, RULES, SRQS};
use crate::shm::job::JobSlot;
use crate::shm::slots::{
    CqSlot, Header, MrSlot, PROC_ALIVE, PortSlot, ProcSlot, QpSlot, RuleSlot, SrqSlot,
};

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
    /// Opens the file that a live process keeps, or makes a new one. Returns with the control lock
    /// taken, which [`Self::assume_control`] turns into a guard.
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
                        libc::ENOSPC | libc::EDQUOT => {
                            "free some space there, or point SOFTRNIC_SHM_DIR elsewhere"
                        }
                        libc::EPROTO => "end its users, or set SOFTRNIC_FABRIC to another name",
                        _ => "point SOFTRNIC_SHM_DIR to a writable tmpfs",
                    };
                    let text = if code == libc::EPROTO {
                        String::new()
                    } else {
                        format!(": {}", errno_text(code))
                    };
                    return Err((
                        format!("cannot use {}: {what}{text}; {advice}", path.display()),
                        code,
                    ));
                }
            }
        }
    }

    /// Opens the file of a fabric that live processes use, to look at it.
    pub(crate) fn open_existing(path: &Path) -> Result<Self, Unusable> {
        let c_path = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| Unusable::System(libc::EINVAL))?;
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
        let is_likely =
            path.metadata().is_ok_and(|found| found.is_file() && found.len() == FILE_BYTES as u64);
        is_likely && Self::open_existing(path).is_ok()
    }

    /// The guard for the lock that [`Self::open`] took.
    pub(crate) fn assume_control(&self) -> ControlLock<'_> {
        ControlLock {
            file: self,
            _threads: self.threads.lock().unwrap_or_else(PoisonError::into_inner),
        }
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

    /// Whether a process copies GPU memory on behalf of the one in slot `index`, or of the one that
    /// was there before.
    pub(crate) fn is_helped(&self, index: usize) -> bool {
        is_locked(self.fd, helper_lock(index), 1)
    }

    /// Takes the life lock of slot `index` for this process.
    pub(crate) fn hold(&self, index: usize) -> bool {
        let is_ours = set_lock(self.fd, life_lock(index), libc::F_WRLCK, libc::F_OFD_SETLK);
        if is_ours {
            // Should it be lost, only the choice of a fabric by the session of its processes
            // suffers.
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

// Its entries.
impl SharedFile {
    /// Whether `device` refuses commands, and is about to fail.
    pub(crate) fn is_refusing(&self, device: usize) -> bool {
        self.header().refusing[device].load(SeqCst) != 0
    }

    /// Whether `device` has failed and is not back.
    #[inline]
    pub(crate) fn is_failed(&self, device: usize) -> bool {
        self.header().returns_at[device].load(SeqCst) != 0
    }

    #[inline]
    pub(crate) fn proc(&self, index: usize) -> &'static ProcSlot {
        assert!(index < PROCS);
        // SAFETY: inside the process table (checked), which has storage and consists of atomics.
        unsafe { &*self.base().add(PROCS_AT).cast::<ProcSlot>().add(index) }
    }

    /// Port `port` (1 or 2) of `device`.
    #[inline]
    pub(crate) fn port(&self, device: usize, port: u32) -> &'static PortSlot {
        let port = port as usize;
        assert!(device < DEVICES && (1..=PORTS).contains(&port));
        // SAFETY: inside the port table (checked), which has storage and consists of atomics.
        unsafe { &*self.base().add(PORTS_AT).cast::<PortSlot>().add(device * PORTS + port - 1) }
    }

    /// All places for fault rules.
    pub(crate) fn rules(&self) -> &'static [RuleSlot; RULES] {
        // SAFETY: the rule table has storage and consists of atomics.
        unsafe { &*self.base().add(RULES_AT).cast() }
    }

    #[inline]
    fn entry<T>(&self, table: Table, device: usize, index: u32) -> &'static T {
        assert!(
            device < DEVICES && index < self.header().grown[device][table as usize].load(Relaxed)
        );
        // SAFETY: inside the part of the table that has storage (checked); `T` is the atomics-only
        // slot type of that table, by the callers below.
        unsafe { &*self.base().add(table.at(device, index)).cast::<T>() }
    }

    #[inline]
    pub(crate) fn qp(&self, device: usize, index: u32) -> &'static QpSlot {
        self.entry(Table::Qp, device, index)
    }

    #[inline]
    pub(crate) fn mr(&self, device: usize, index: u32) -> &'static MrSlot {
        self.entry(Table::Mr, device, index)
    }

    #[inline]
    pub(crate) fn cq(&self, device: usize, index: u32) -> &'static CqSlot {
        self.entry(Table::Cq, device, index)
    }

    #[inline]
    pub(crate) fn srq(&self, device: usize, index: u32) -> &'static SrqSlot {
        self.entry(Table::Srq, device, index)
    }

    /// The QP entry that `qpn` names on `device`, if that part of the table exists.
    #[inline]
    pub(crate) fn find_qp(&self, device: usize, qpn: u32) -> Option<&'static QpSlot> {
        let index = qpn % QPS;
        (index < self.header().grown[device][Table::Qp as usize].load(Relaxed))
            .then(|| self.qp(device, index))
    }

    /// The MR entry that `key` names on `device`, if it is valid there.
    #[inline]
    pub(crate) fn find_mr(&self, device: usize, key: u32) -> Option<&'static MrSlot> {
        let index = key >> 8;
        if index >= self.header().grown[device][Table::Mr as usize].load(Relaxed) || key == 0 {
            return None;
        }
        let mr = self.mr(device, index);
        (mr.key.load(SeqCst) == key).then_some(mr)
    }

    /// The words `[at, at + bytes)` of the ring area.
    pub(crate) fn ring_words(&self, at: u64, bytes: usize) -> Option<&'static [AtomicU64]> {
        let at = usize::try_from(at).ok()?;
        let fits = at >= RINGS_AT && at.is_multiple_of(8) && at.checked_add(bytes)? <= JOBS_AT;
        // SAFETY: inside the mapping and aligned (checked); the owner allocated storage before
        // publishing the ring.
        fits.then(|| unsafe { std::slice::from_raw_parts(self.base().add(at).cast(), bytes / 8) })
    }

    /// Indices of `table` that have storage.
    pub(crate) fn entries(&self, table: Table, device: usize) -> std::ops::Range<u32> {
        0..self.header().grown[device][table as usize].load(Acquire)
    }

    /// Whether copies may be staged in this fabric.
    #[inline]
    pub(crate) fn has_stage(&self) -> bool {
        self.header().is_staging.load(Acquire) != 0
    }

    /// All slots. Only while [`Self::has_stage`].
    pub(crate) fn jobs(&self) -> &'static [JobSlot; JOBS] {
        // SAFETY: inside the mapping; the slots have storage (the caller has looked) and consist of
        // atomics.
        unsafe { &*self.base().add(JOBS_AT).cast() }
    }

    /// The bytes of slot `index`: [`STAGE_BYTES`] of them.
    pub(crate) fn stage(&self, index: usize) -> *mut u8 {
        assert!(index < JOBS);
        // SAFETY: inside the mapping (checked).
        unsafe { self.base().add(STAGE_AT + index * STAGE_BYTES) }
    }

    /// Where all staging bytes begin.
    pub(crate) fn whole_stage(&self) -> (*mut u8, usize) {
        (self.stage(0), JOBS * STAGE_BYTES)
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

    /// With the control lock taken: checks what the file is. `None` means "look again" (it was
    /// stale or is gone).
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
                    // SAFETY: `path` is a valid C string; under the control lock the file is ours
                    // alone.
                    unsafe { libc::unlink(path.as_ptr()) };
                    Err((format!("no room for {} KiB of shared memory", TABLES_AT >> 10), code))
                }
            };
        }
        let in_use = is_locked(self.0, life_lock(0), PROCS as i64);
        if in_use && !self.has_our_layout(size) {
            let what = "it is in use by another version of softrnic, in this process or in others (or is no fabric at all)";
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
        allocate(self.0, 0, TABLES_AT)?;
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
        got == bytes as isize
            && words == [MAGIC, VERSION, FILE_BYTES as u64]
            && size == FILE_BYTES as i64
    }

    /// Maps the file, whose name this is, by an open file of its own: a forked child keeps the
    /// mapping, and must not keep the locks with it. The caller holds the control lock, under which
    /// the name stays.
    fn map(&self, path: &CString) -> Result<*mut u8, i32> {
        let mapped = Self::open(path, 0)?;
        if !is_same_file(mapped.0, path) || !is_same_file(self.0, path) {
            return Err(libc::ESTALE);
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), FILE_BYTES, prot, libc::MAP_SHARED, mapped.0, 0) };
        if base == libc::MAP_FAILED { Err(last_errno()) } else { Ok(base.cast()) }
    }
}

fn open_or_create(c_path: &CString, path: &Path) -> Result<Descriptor, Failure> {
    Descriptor::open(c_path, libc::O_CREAT).map_err(|code| {
        let why = errno_text(code);
        (
            format!(
                "cannot create {}: {why}; point SOFTRNIC_SHM_DIR to a directory that is writable",
                path.display()
            ),
            code,
        )
    })
}

/// Whether a process that still takes part holds its life lock.
fn any_alive(fd: i32, base: *mut u8) -> bool {
    (0..PROCS).any(|i| {
        // SAFETY: the process table lies in the part of the file that always has storage.
        let slot = unsafe { &*base.add(PROCS_AT).cast::<ProcSlot>().add(i) };
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

// What lies where in the shared file.
//
// ```text
// 0        Header
// 4 KiB    PROCS x ProcSlot
// 36 KiB   DEVICES x PORTS x PortSlot
// 52 KiB   RULES x RuleSlot
// 64 KiB   a bit for each page of the receive rings
// 128 KiB  per device: QPS x QpSlot, MRS x MrSlot, CQS x CqSlot, SRQS x SrqSlot    (storage allocated chunk by chunk, on first use)
// ...      receive rings                                           (storage allocated with the QP)
// ...      JOBS x JobSlot, JOBS x bytes to stage copies in         (storage allocated when the first is needed)
// ```

/// First word of the file: the text "softrnic".
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"softrnic");
/// Change it with every change in this file.
pub(crate) const VERSION: u64 = 17;

pub(crate) const PAGE: usize = 4096;
/// Storage of the tables grows by this much.
pub(crate) const CHUNK: usize = 64 << 10;
pub(crate) const PROCS_AT: usize = PAGE;
pub(crate) const PORTS_AT: usize = PROCS_AT + PROCS * size_of::<ProcSlot>();
pub(crate) const RULES_AT: usize = PORTS_AT + DEVICES * PORTS * size_of::<PortSlot>();
pub(crate) const RING_PAGES_AT: usize = CHUNK;
pub(crate) const TABLES_AT: usize = 2 * CHUNK;
const QP_TABLE: usize = QPS as usize * size_of::<QpSlot>();
const MR_TABLE: usize = MRS as usize * size_of::<MrSlot>();
const CQ_TABLE: usize = CQS as usize * size_of::<CqSlot>();
const SRQ_TABLE: usize = SRQS as usize * size_of::<SrqSlot>();
const DEVICE_TABLES: usize = QP_TABLE + MR_TABLE + CQ_TABLE + SRQ_TABLE;
pub(crate) const RINGS_AT: usize = TABLES_AT + DEVICES * DEVICE_TABLES;
/// Bound of all receive rings together.
pub(crate) const RINGS_BYTES: usize = 128 << 20;
/// Most bytes of one staged copy.
pub(crate) const STAGE_BYTES: usize = 512 << 10;
pub(crate) const JOBS_AT: usize = RINGS_AT + RINGS_BYTES;
pub(crate) const STAGE_AT: usize = JOBS_AT + PAGE;
pub(crate) const FILE_BYTES: usize = STAGE_AT + JOBS * STAGE_BYTES;

/// The tables of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Qp = 0,
    Mr = 1,
    Cq = 2,
    Srq = 3,
}

impl Table {
    /// Where entry `index` of this table of `device` begins.
    pub(crate) fn at(self, device: usize, index: u32) -> usize {
        let base = TABLES_AT + device * DEVICE_TABLES;
        let index = index as usize;
        match self {
            Self::Qp => base + index * size_of::<QpSlot>(),
            Self::Mr => base + QP_TABLE + index * size_of::<MrSlot>(),
            Self::Cq => base + QP_TABLE + MR_TABLE + index * size_of::<CqSlot>(),
            Self::Srq => base + QP_TABLE + MR_TABLE + CQ_TABLE + index * size_of::<SrqSlot>(),
        }
    }

    /// Entries in the table.
    pub(crate) fn capacity(self) -> u32 {
        match self {
            Self::Qp => QPS,
            Self::Mr => MRS,
            Self::Cq => CQS,
            Self::Srq => SRQS,
        }
    }

    /// Entries in one chunk of storage.
    pub(crate) fn per_chunk(self) -> u32 {
        let entry = match self {
            Self::Qp => size_of::<QpSlot>(),
            Self::Mr => size_of::<MrSlot>(),
            Self::Cq => size_of::<CqSlot>(),
            Self::Srq => size_of::<SrqSlot>(),
        };
        (CHUNK / entry) as u32
    }
}

const _: () = {
    assert!(size_of::<Header>() <= PAGE);
    assert!(JOBS * size_of::<JobSlot>() <= PAGE && STAGE_AT.is_multiple_of(PAGE));
    assert!(RULES_AT + RULES * size_of::<RuleSlot>() <= RING_PAGES_AT);
    assert!(RING_PAGES_AT + RINGS_BYTES / PAGE / 8 <= TABLES_AT);
    assert!(
        QP_TABLE.is_multiple_of(CHUNK)
            && MR_TABLE.is_multiple_of(CHUNK)
            && CQ_TABLE.is_multiple_of(CHUNK)
    );
    assert!(SRQ_TABLE.is_multiple_of(CHUNK));
};

/// What became of a file that was to be removed unless a process holds it.
#[derive(Debug)]
pub(crate) enum Remains {
    /// It is no fabric, it is another user's, or it has gone meanwhile.
    NotOurs,
    /// A process takes part in it, or is just about to.
    Held,
    /// No process takes part in it any more; the bytes of storage that it has.
    Dead(u64),
    /// It is gone; the bytes of storage that it had.
    Removed(u64),
}

/// What is left of the fabric `path`, which is removed, if it is to be, where no process has it.
pub(crate) fn look(path: &Path, is_removed: bool) -> io::Result<Remains> {
    let Some((file, bytes)) = open(path)? else { return Ok(Remains::NotOurs) };
    if !hold_all(&file)? {
        return Ok(Remains::Held);
    }
    // A process that comes now waits for the lock, and then finds that the name is another file's
    // or is gone.
    if !is_named(&file, path)? {
        return Ok(Remains::NotOurs);
    }
    if !is_removed {
        return Ok(Remains::Dead(bytes));
    }
    std::fs::remove_file(path)?;
    Ok(Remains::Removed(bytes))
}

/// The processes that take part in the fabric `path` of this user, as far as they are in this
/// process id namespace. Empty if it is no fabric. Not for a process that takes part in it itself:
/// closing the file drops the lock that tells its number.
pub(crate) fn pids(path: &Path) -> io::Result<Vec<i32>> {
    let Some((file, _)) = open(path)? else { return Ok(Vec::new()) };
    let holders = (0..PROCS).filter_map(|index| {
        let mut range = lock_range(libc::F_WRLCK, pid_lock(index), 1);
        // SAFETY: an open file; `range` outlives the call.
        let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut range) };
        // 0: a process of another namespace.
        (rc == 0 && i32::from(range.l_type) != libc::F_UNLCK && range.l_pid > 0)
            .then_some(range.l_pid)
    });
    Ok(holders.collect())
}

/// A fabric of this user, opened, and how many bytes of storage it has. `None`: it is another
/// user's, no fabric, or gone.
fn open(path: &Path) -> io::Result<Option<(File, u64)>> {
    // SAFETY: geteuid has no preconditions.
    let me = unsafe { libc::geteuid() };
    let is_ours = |found: Metadata| found.is_file() && found.uid() == me;
    // Before it is opened: what is no plain file, or another user's, is left alone.
    if !path.symlink_metadata().is_ok_and(is_ours) {
        return Ok(None);
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = file.metadata()?;
    let mut magic = [0; 8];
    let is_fabric = file.read_at(&mut magic, 0)? == magic.len() && magic == MAGIC.to_ne_bytes();
    let bytes = found.blocks() * 512;
    Ok((is_fabric && is_ours(found)).then_some((file, bytes)))
}

/// Takes every lock that a process of a fabric can hold, without waiting. Only closing `file` gives
/// them back. False: another process has one.
fn hold_all(file: &File) -> io::Result<bool> {
    // A length of 0 is "without end".
    let range = lock_range(libc::F_WRLCK, CONTROL, 0);
    // SAFETY: an open file; `range` outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) {
        Ok(false)
    } else {
        Err(error)
    }
}

/// Whether `path` still names `file`.
fn is_named(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match path.symlink_metadata() {
        Ok(named) => Ok((open.dev(), open.ino()) == (named.dev(), named.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

// Record locks on offsets far behind the end of the file. The kernel drops them when their process
// dies: they are the authority on which process is alive.
//
// They belong to the open file and not to the process: two copies of this library in one process
// are two processes of the fabric, each of which sees the locks of the other. A forked child
// inherits the open file and closes it ([`crate::shm::file::SharedFile::abandon`]); while it keeps
// it open, the locks of its parent are not dropped.

/// Offset of the lock that serialises creation, destruction and attaching. The crate's page states
/// it: from here on, programs look for locks to learn whether a process takes part.
pub(crate) const CONTROL: i64 = 1 << 40;

/// Offset of the lock that process slot `index` holds while it lives.
pub(crate) fn life_lock(index: usize) -> i64 {
    CONTROL + 1 + index as i64
}

/// Offset of the lock that the helper of the process in slot `index` holds while it may write to
/// the stage.
pub(crate) fn helper_lock(index: usize) -> i64 {
    life_lock(PROCS + index)
}

/// Offset of the lock that tells the number of the process in slot `index`. This one belongs to the
/// process: the lock of an open file tells no number.
pub(crate) fn pid_lock(index: usize) -> i64 {
    helper_lock(PROCS + index)
}

pub(crate) fn lock_range(kind: i32, start: i64, len: i64) -> libc::flock {
    // SAFETY: all zeros is a valid flock.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as i16;
    range.l_whence = libc::SEEK_SET as i16;
    range.l_start = start;
    range.l_len = len;
    range
}

pub(crate) fn set_lock(fd: i32, at: i64, kind: i32, command: i32) -> bool {
    let range = lock_range(kind, at, 1);
    loop {
        // SAFETY: `range` outlives the call.
        if unsafe { libc::fcntl(fd, command, &range) } == 0 {
            return true;
        }
        if last_errno() != libc::EINTR {
            return false;
        }
    }
}

/// Whether another open file, or another process, has a lock in `[at, at + len)`.
pub(crate) fn is_locked(fd: i32, at: i64, len: i64) -> bool {
    let mut range = lock_range(libc::F_WRLCK, at, len);
    // SAFETY: `range` outlives the call.
    let rc = unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &mut range) };
    rc == 0 && i32::from(range.l_type) != libc::F_UNLCK
}

const SLOT_BITS: u32 = 8;
const _: () = assert!(PROCS == 1 << SLOT_BITS);

/// Slot number of a process id.
pub(crate) fn slot_of(id: u32) -> usize {
    (id & ((1 << SLOT_BITS) - 1)) as usize
}

/// The id of generation `generation` of slot `index`; never 0.
pub(crate) fn id_of(index: usize, generation: u32) -> u32 {
    ((generation & 0x7f_ffff).max(1) << SLOT_BITS) | index as u32
}
