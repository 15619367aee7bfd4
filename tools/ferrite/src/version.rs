//! Which build this is.

/// `0.1.0`, and the commit it was built from where that was known: `0.1.0 (commit 0123456789ab)`. `, modified` follows
/// the commit if files were changed since.
pub(crate) fn text() -> String {
    let version = env!("CARGO_PKG_VERSION");
    option_env!("FERRITE_COMMIT").map_or_else(|| version.into(), |commit| format!("{version} (commit {commit})"))
}
