//! A private mount namespace, and an overlay in it.

use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{fs, io, ptr};

/// What was tried, and what came of it.
pub(super) type Failure = (&'static str, io::Error);

fn check(rc: i32, what: &'static str) -> Result<(), Failure> {
    if rc == 0 { Ok(()) } else { Err((what, io::Error::last_os_error())) }
}

/// Moves this process, which has one thread, into a mount namespace of its own; with a user namespace where it may not
/// mount otherwise. User and groups stay the same.
pub(super) fn enter() -> Result<(), Failure> {
    // SAFETY: no preconditions.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: no preconditions; changes this process only.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        // SAFETY: as above.
        check(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) }, "unshare failed")?;
        let put =
            |path: &str, text: String| fs::write(path, text).map_err(|error| ("the user cannot be mapped", error));
        put("/proc/self/setgroups", "deny".to_owned())?;
        put("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        put("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    // What is mounted from now on stays in here.
    mount("none", Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE, "")
        .map_err(|e| ("/ cannot be made private", e))
}

/// Makes `dir` writable: an overlay on what it shows, which lives in memory.
pub(super) fn overlay(dir: &Path) -> Result<(), Failure> {
    let lower = fs::File::open(dir).map_err(|error| ("it cannot be opened", error))?;
    tmpfs(dir)?;
    for name in ["upper", "work"] {
        fs::create_dir(dir.join(name)).map_err(|error| ("the tmpfs cannot be used", error))?;
    }
    // The tmpfs hides the lower folder from its own path.
    let lower = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&lower));
    let options = format!("lowerdir={lower},upperdir={0}/upper,workdir={0}/work", dir.display());
    mount("overlay", dir, Some("overlay"), 0, &format!("{options},userxattr"))
        .or_else(|_| mount("overlay", dir, Some("overlay"), 0, &options))
        .map_err(|error| ("no overlay can be mounted on it", error))
}

/// A folder in memory, mounted on `dir`.
pub(super) fn tmpfs(dir: &Path) -> Result<(), Failure> {
    mount("tmpfs", dir, Some("tmpfs"), 0, "mode=755").map_err(|error| ("no tmpfs can be mounted", error))
}

/// Shows `source`, and all that is mounted in it, at `target` as well.
pub(super) fn bind(source: &Path, target: &Path) -> Result<(), Failure> {
    let source = source.to_string_lossy();
    mount(&source, target, None, libc::MS_BIND | libc::MS_REC, "").map_err(|error| ("an entry cannot be bound", error))
}

fn mount(source: &str, target: &Path, kind: Option<&str>, flags: u64, options: &str) -> io::Result<()> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::other);
    let (source, target, options) =
        (text(source.as_bytes())?, text(target.as_os_str().as_bytes())?, text(options.as_bytes())?);
    let kind = kind.map(|kind| text(kind.as_bytes())).transpose()?;
    let kind = kind.as_ref().map_or(ptr::null::<c_char>(), |kind| kind.as_ptr());
    // SAFETY: valid C strings, or NULL where that is allowed.
    let rc = unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind, flags, options.as_ptr().cast()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
