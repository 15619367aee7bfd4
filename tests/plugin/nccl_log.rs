//! The plugin's warnings in the logs of stock NCCL, with its ordinary settings.

use crate::common::prelude::*;
use lab::nccl::debug_log;
use nccl_net::testing::explain::is_shown_by_all;
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::path::Path;

/// What this process writes to standard output while `body` runs.
fn stdout_of(body: impl FnOnce() -> Result<()>) -> Result<String> {
    let folder = Scratch::new();
    let path = folder.path().join("stdout");
    let file = std::fs::File::create(&path).expect("a file");
    // SAFETY: descriptors of this process, which has one thread that writes there.
    let saved = unsafe { [libc::dup(1), libc::dup2(file.as_raw_fd(), 1)] }[0];
    let result = body();
    // SAFETY: as above; NULL flushes all of C's streams.
    let ended =
        unsafe { [libc::fflush(std::ptr::null_mut()), libc::dup2(saved, 1), libc::close(saved)] };
    assert_eq!(ended, [0, 1, 0]);
    result.map(|()| std::fs::read_to_string(&path).expect("text"))
}

/// `NCCL_DEBUG`, `NCCL_DEBUG_SUBSYS`, `NCCL_DEBUG_LEVELS` (empty: not set), and whether NCCL 2.21.5
/// and 2.32.3 show warnings then.
type LogRow = (&'static str, Option<&'static str>, &'static str, [bool; 2]);

const LOG_ROWS: [LogRow; 13] = [
    ("", None, "", [false, false]),
    ("VERSION", None, "", [false, false]),
    ("WARN", None, "", [true, true]),
    ("info", None, "", [true, true]),
    ("ATTN", None, "", [false, true]),
    ("INFO ", None, "", [false, true]),
    ("", None, "WARN", [false, true]),
    ("VERSION", None, "WARN", [false, true]),
    ("WARN", Some(""), "", [false, false]),
    ("WARN", Some("COLL"), "", [true, true]),
    ("WARN", Some("^NET"), "", [true, true]),
    ("WARN", Some("^ALL"), "", [false, false]),
    ("WARN", Some("NETT"), "", [false, true]),
];

/// Which row a process is for.
const ROW: &str = "LOG_ROW";

/// For each row, in a process of its own: whether the logger of `release` shows a warning of the
/// plugin; and whether it shows what the tests' own logger shows of each level and subsystem, and
/// for the older release no more than that.
fn shows_warnings_as_its_own(release: &str) -> Result<()> {
    let nccl = require!(stock_nccl(release));
    let setting = require!(setting());
    (0..LOG_ROWS.len()).try_for_each(|row| {
        shows_a_warning(&nccl, release == "2.21.5", setting.clone().env(ROW, row.to_string()))
    })
}

fn shows_a_warning(nccl: &Path, is_old: bool, setting: Setting) -> Result<()> {
    alone(Ok(setting), |_| {
        let row: usize = std::env::var(ROW).expect("it is set").parse().expect("a number");
        let (debug, subsystems, levels, shown) = LOG_ROWS[row];
        let [debug, levels] =
            [debug, levels].map(|value| Some(value).filter(|value| !value.is_empty()));
        let variables = [
            ("NCCL_DEBUG", debug),
            ("NCCL_DEBUG_SUBSYS", subsystems),
            ("NCCL_DEBUG_LEVELS", levels),
        ];
        for (name, value) in variables {
            // SAFETY: this process has one thread that looks at the environment: this one.
            unsafe {
                value.map_or_else(
                    || std::env::remove_var(name),
                    |value| std::env::set_var(name, value),
                )
            };
        }
        let what = format!("{} with {debug:?}, {subsystems:?}, {levels:?}", nccl.display());
        debug_log::use_stock(nccl)?;
        let text = stdout_of(|| {
            let transport = Transport::open(&Source::plugin(plugin().expect("it is there")))?;
            assert!(transport.properties(99).is_err());
            let logger = debug_log::callback().expect("there is one");
            for (level, subsystem) in ROWS_OF_LINES {
                let text =
                    CString::new(format!("a line of {level} {subsystem:#x};")).expect("no NUL");
                // SAFETY: NCCL's logger, whose format takes one string.
                unsafe {
                    logger(level, subsystem, c"file".as_ptr(), 1, c"%s".as_ptr(), text.as_ptr())
                };
            }
            Ok(())
        })?;
        let shows = text.lines().any(|line| line.contains("NCCL WARN") && line.contains("99"));
        let expected = shown[usize::from(!is_old)];
        assert_eq!(shows, expected, "{what}: {text}");
        for (level, subsystem) in ROWS_OF_LINES {
            let ours = debug_log::shows(debug, subsystems, level, subsystem);
            let theirs = text.contains(&format!("a line of {level} {subsystem:#x};"));
            let agree = if is_old { ours == theirs } else { theirs || !ours };
            assert!(
                agree,
                "level {level}, subsystems {subsystem:#x}: {theirs} of {what}, {ours} here"
            );
        }
        assert_eq!(is_shown_by_all(debug, subsystems), shown == [true; 2], "{what}");
        Ok(())
    })
}

/// Levels WARN, INFO, TRACE; subsystems none, INIT, NET, INIT and NET, all.
const ROWS_OF_LINES: [(u32, u64); 8] =
    [(2, 0), (2, 1), (2, 16), (2, u64::MAX), (3, 1), (3, 16), (3, 17), (5, 16)];

cases! { Result<()>;
    nccl_2_21_5_shows_the_plugins_warnings_wherever_it_shows_its_own =>
        shows_warnings_as_its_own("2.21.5");
    nccl_2_32_3_shows_the_plugins_warnings_wherever_it_shows_its_own =>
        shows_warnings_as_its_own("2.32.3");
}
