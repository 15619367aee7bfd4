//! errno: its text, its value, setting it.

/// The text of an errno value.
pub(crate) fn errno_text(code: i32) -> String {
    std::io::Error::from_raw_os_error(code).to_string()
}

/// The calling thread's errno.
pub(crate) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Sets the calling thread's errno.
pub(crate) fn set_errno(code: i32) {
    // SAFETY: libc hands out a valid pointer to this thread's own errno.
    unsafe { *libc::__errno_location() = code };
}
