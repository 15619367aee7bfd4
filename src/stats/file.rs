//! This process's statistics file: creates, locks, grows and removes it.

#![allow(unsafe_code)]

use super::layout::{CHUNK_RECORDS, FILE_PREFIX, HEADER_WORDS, MAX_RECORDS, RECORD_WORDS, header};
use super::lock;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Resource;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The words of the header.
pub(super) type Header = [AtomicU64; HEADER_WORDS];
/// The words of a record.
pub(super) type Words = [AtomicU64; RECORD_WORDS];
/// The records by which the file grows.
pub(super) type Chunk = [Words; CHUNK_RECORDS];

/// The file, which is mapped as long as the process lives.
#[derive(Debug)]
pub(super) struct StatsFile {
    file: OwnedFd,
    pub(super) header: &'static Header,
    records: usize,
}

impl StatsFile {
    /// The path of this process's file in `folder`. `start_ticks` is when the process started;
    /// `pid_namespace` is the namespace of its process id.
    pub(super) fn path(folder: &Path, start_ticks: u64, pid_namespace: u64) -> PathBuf {
        folder
            .join(format!("{FILE_PREFIX}{}.{start_ticks:x}.{pid_namespace:x}", std::process::id()))
    }

    /// Creates the file of this process, with an empty header and no record.
    ///
    /// # Errors
    /// The file system refuses, or is too full.
    pub(super) fn create(path: PathBuf) -> Result<Self, String> {
        let failed = |e: Errno| match e {
            Errno::NOSPC => {
                format!("{}: less than half of the file system would be left", path.display())
            }
            e => format!("{}: {}", path.display(), std::io::Error::from(e)),
        };
        // An existing file of this name is this process's own, from before an exec.
        let _ = rustix::fs::unlink(&path);
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        remove_at_exit(&path);
        lock::take(file.as_fd());
        match map::<Header>(&file, 0) {
            Ok(header) => Ok(Self { file, header, records: 0 }),
            Err(e) => {
                let _ = rustix::fs::unlink(&path);
                Err(failed(e))
            }
        }
    }

    /// Adds [`CHUNK_RECORDS`] records. `None`: the file system is too full, or the file has
    /// [`MAX_RECORDS`].
    pub(super) fn grow(&mut self) -> Option<&'static Chunk> {
        if self.records + CHUNK_RECORDS > MAX_RECORDS {
            return None;
        }
        let at = (size_of::<Header>() + self.records * size_of::<Words>()) as u64;
        let chunk = map::<Chunk>(&self.file, at).ok()?;
        self.records += CHUNK_RECORDS;
        self.header[header::RECORDS].store(self.records as u64, Ordering::Release);
        Some(chunk)
    }
}

/// Adds to a word that has one writer.
#[inline(always)]
pub(super) fn add(word: &AtomicU64, n: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// Memory of this process alone, which is never freed.
pub(super) fn private<T: Mapped>() -> &'static T {
    let Ok(layout) = Layout::new::<T>().align_to(CACHE_LINE) else {
        handle_alloc_error(Layout::new::<T>())
    };
    // SAFETY: the size is not 0.
    let memory = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if memory.is_null() {
        handle_alloc_error(layout);
    }
    // SAFETY: memory of this size and alignment, never freed, whose zeros are valid, as the trait
    // says.
    unsafe { &*memory }
}

/// A record begins on a cache line of its own.
const CACHE_LINE: usize = 64;

/// Types that are arrays of atomic words.
pub(super) trait Mapped: Sized + 'static {}
impl Mapped for Header {}
impl Mapped for Chunk {}

/// A file system with this much free is not full, however large it is.
const ROOM_ENOUGH: u64 = 1 << 30;

/// Whether a file system of `total` bytes with `left` free has room for `bytes` more and still
/// enough for others: NCCL allocates memory in `/dev/shm` and cannot start without it. `total` is 0
/// if the file system reports no size.
fn leaves_room(total: u64, left: u64, bytes: u64) -> bool {
    total == 0 || left.saturating_sub(bytes) >= ROOM_ENOUGH.min(total / 2)
}

/// Maps a `T` at offset `at` of `file`, which it extends. Allocates the blocks first, so that a
/// full file system is an error here and not a signal when the memory is written.
fn map<T: Mapped>(file: &OwnedFd, at: u64) -> Result<&'static T, Errno> {
    let bytes = size_of::<T>();
    // Growing a file beyond this limit would end the process with a signal.
    if rustix::process::getrlimit(Resource::Fsize)
        .current
        .is_some_and(|most| most < at + bytes as u64)
    {
        return Err(Errno::FBIG);
    }
    if let Ok(system) = rustix::fs::fstatvfs(file) {
        let [total, left] =
            [system.f_blocks, system.f_bavail].map(|blocks| blocks.saturating_mul(system.f_frsize));
        if !leaves_room(total, left, bytes as u64) {
            return Err(Errno::NOSPC);
        }
    }
    match rustix::io::retry_on_intr(|| {
        rustix::fs::fallocate(file, FallocateFlags::empty(), at, bytes as u64)
    }) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => fill(file, at, bytes)?,
        other => other?,
    }
    let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, std::os::fd::AsRawFd::as_raw_fd(file));
    // SAFETY: a new mapping at an address of the kernel's choice; `at` is a multiple of the page
    // size, as the assertions say.
    let memory = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, at as libc::off_t)
    };
    if memory == libc::MAP_FAILED {
        return Err(Errno::from_raw_os_error(
            std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOMEM),
        ));
    }
    // SAFETY: `bytes` bytes that are never unmapped, aligned to a page. Every access to them is
    // atomic, here and in readers.
    Ok(unsafe { &*memory.cast::<T>() })
}

// Pages are 4 KiB on x86-64, and 4 or 64 KiB on arm64. There, mapping a file at this offset may
// fail; memory is private then.
const _: () =
    assert!(size_of::<Header>().is_multiple_of(4096) && size_of::<Chunk>().is_multiple_of(4096));

/// As `fallocate`, for a file system that does not support it.
fn fill(file: &OwnedFd, at: u64, bytes: usize) -> Result<(), Errno> {
    let zeros = [0; 4096];
    let mut done = 0;
    while done < bytes {
        let part = &zeros[..zeros.len().min(bytes - done)];
        done += rustix::io::retry_on_intr(|| rustix::io::pwrite(file, part, at + done as u64))?;
    }
    Ok(())
}

static REMOVED_AT_EXIT: OnceLock<(u32, CString)> = OnceLock::new();

/// Registers the removal of the file at normal exit. A forked child removes nothing.
fn remove_at_exit(path: &Path) {
    extern "C" fn remove() {
        if let Some((_, path)) =
            REMOVED_AT_EXIT.get().filter(|(owner, _)| *owner == std::process::id())
        {
            let _ = rustix::fs::unlink(path.as_c_str());
        }
    }
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return };
    if REMOVED_AT_EXIT.set((std::process::id(), path)).is_ok() {
        // SAFETY: a function that lives as long as the process, since the library is never
        // unmapped.
        unsafe { libc::atexit(remove) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_small_file_system_is_left_to_others_and_a_gigabyte_of_a_large_one() {
        let mib = |n: u64| n << 20;
        assert!(
            leaves_room(mib(64), mib(33), mib(1)) && !leaves_room(mib(64), mib(33), mib(1) + 1)
        );
        assert!(
            leaves_room(mib(1 << 20), mib(1025), mib(1))
                && !leaves_room(mib(1 << 20), mib(1024), mib(1))
        );
        assert!(!leaves_room(4096, 4096, 8192), "it has less than is needed");
        assert!(leaves_room(0, 0, mib(1)), "it tells no size");
    }

    #[test]
    fn processes_of_one_number_and_one_start_in_two_namespaces_have_files_of_their_own() {
        let folder = testkit::Scratch::new();
        let [one, other] = [1, 2].map(|namespace| StatsFile::path(folder.path(), 7, namespace));
        let _files =
            [&one, &other].map(|path| StatsFile::create(path.clone()).expect("there is room"));
        assert!(one.exists() && other.exists(), "one has removed the other's");
        [one, other].iter().for_each(|path| std::fs::remove_file(path).expect("it is there"));
    }
}
