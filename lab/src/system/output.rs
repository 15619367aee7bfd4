//! What a run leaves: text on stdout and stderr, and files, whose places are tried before anything
//! long begins.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// Writes text to stdout. A reader that went away is no reason to stop.
///
/// # Errors
/// [`Error::Io`] if it cannot be written, such as to a full disk.
pub fn write_stdout(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(problem) if problem.kind() != ErrorKind::BrokenPipe => {
            Err(Error::io("cannot write to stdout", problem))
        }
        _ => Ok(()),
    }
}

/// Columns of the terminal that stdout is. `None`: it is none, or does not tell.
pub fn width() -> Option<usize> {
    // SAFETY: zero is valid for a struct of numbers.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes the struct.
    let is_known =
        unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) } == 0;
    is_known.then_some(usize::from(size.ws_col)).filter(|columns| *columns >= 60)
}

/// Writes a line to stderr. A reader that went away is no reason to stop, or to panic.
pub fn write_stderr(line: std::fmt::Arguments<'_>) {
    std::io::stderr().write_fmt(format_args!("{line}\n")).unwrap_or_default();
}

/// The text in one line, without what would change a terminal: it may come from another host or
/// from the kernel's log.
pub fn plain(text: &str) -> String {
    text.replace('\n', "; ").replace(|c: char| c.is_control(), " ")
}

/// Writes a file.
///
/// # Errors
/// [`Error::Io`] with its name.
pub fn write_file(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|problem| cannot_write(path, problem))
}

/// Finds out whether [`write_file`] to this file will do, and leaves everything as it was.
///
/// # Errors
/// [`Error::Io`] with its name.
pub fn require_writable(path: &Path) -> Result<()> {
    let was_there = path.exists();
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .map_err(|problem| cannot_write(path, problem))?;
    if !was_there {
        std::fs::remove_file(path).map_err(|problem| cannot_write(path, problem))?;
    }
    Ok(())
}

/// As [`require_writable`], for some files of a folder, which is made.
///
/// # Errors
/// [`Error::Io`] with the name of the folder or of the file.
pub fn require_writable_in(folder: &Path, names: &[&str]) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|problem| {
        Error::io(
            format!("cannot create {}; --report names another folder", folder.display()),
            problem,
        )
    })?;
    names.iter().try_for_each(|name| require_writable(&folder.join(name)))
}

fn cannot_write(path: &Path, problem: std::io::Error) -> Error {
    Error::io(format!("cannot write {}", path.display()), problem)
}

// Ctrl-C: the first one takes effect between two steps, so that what has been measured is not lost; the
// second one ends the process.

static RECEIVED: AtomicBool = AtomicBool::new(false);

extern "C" fn handle_sigint(_: libc::c_int) {
    RECEIVED.store(true, Ordering::Relaxed);
}

/// From now on only [`check`] reports the first SIGINT.
pub fn install_handler() {
    let handler: extern "C" fn(libc::c_int) = handle_sigint;
    // SAFETY: an all-zero sigaction has an empty mask; the handler stores into an atomic, which a
    // handler may do. SA_RESETHAND: the second signal does what it does without a handler.
    let failed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
        libc::sigaction(libc::SIGINT, &raw const action, std::ptr::null_mut()) != 0
    };
    if failed {
        log::debug!("sigaction: {}", std::io::Error::last_os_error());
    }
}

/// Whether a SIGINT has come.
pub fn received() -> bool {
    RECEIVED.load(Ordering::Relaxed)
}

/// An error once a SIGINT has come.
///
/// # Errors
/// [`Error::Interrupted`].
pub fn check() -> Result<()> {
    if received() { Err(Error::Interrupted) } else { Ok(()) }
}

/// Leaves SIGINT to the parent, which gets it from the terminal too and ends this process. For use
/// between fork and exec: a plain system call.
pub fn ignore_sigint() {
    // SAFETY: a disposition without a handler.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
}
