//! What the tests share: fixtures compiled on first use.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ferrite::pair::Setting;
use ferrite::verbs::Verbs;

/// `tests/fixtures/NAME.c` as a shared object.
pub(crate) fn shared_object(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.c"));
    let text = std::fs::read(&source).expect("the fixture is there");
    let stem: String = flags.iter().map(|flag| flag.trim_start_matches('-')).collect();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lib{name}{stem}.so"));
    let age = |path: &Path| path.metadata().and_then(|meta| meta.modified()).ok();
    if age(&target) > age(&source) && !text.is_empty() {
        return target;
    }
    let scratch = target.with_extension(format!("{}.{:?}", std::process::id(), std::thread::current().id()));
    let status = Command::new("cc")
        .args(["-O2", "-fPIC", "-shared"])
        .args(flags)
        .arg("-I")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include"))
        .arg("-o")
        .arg(&scratch)
        .arg(&source)
        .status()
        .expect("a C compiler is there");
    assert!(status.success(), "{} does not compile", source.display());
    std::fs::rename(&scratch, &target).expect("the fixture can be put in place");
    target
}

/// The loopback transport.
pub(crate) fn loopback() -> PathBuf {
    shared_object("loopback", &[])
}

/// No NIC of any kind, and a short patience.
pub(crate) fn setting() -> Setting {
    let mut setting = Setting::new(Verbs::System);
    setting.silence = Duration::from_secs(3);
    setting
}
