//! Lines on standard error. Writing never panics, even when standard error is closed.

use std::fmt;
use std::io::Write;

/// Prints one line that begins with `softrnic: `.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "softrnic: {line}");
}
