//! What the tests share: fixtures compiled on first use.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

use ferrite::pair::{Setting, Turn};
use ferrite::verbs::Verbs;

/// `tests/fixtures/NAME.c` as a shared object.
pub(crate) fn shared_object(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.c"));
    let text = std::fs::read(&source).expect("the fixture is there");
    let stem = flags.concat().replace(|c: char| !c.is_ascii_alphanumeric(), "");
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

/// No NIC of any kind.
pub(crate) fn setting() -> Setting {
    Setting::new(Verbs::System)
}

/// A library with the loopback transport where NCCL keeps its own, of the version 2.21.5.
pub(crate) fn fake_nccl() -> PathBuf {
    shared_object("loopback", &["-DAS_NCCL=22105", "-DVTABLE_NAME=\"IB\""])
}

/// The folder with the built plugin and software device; says so when a part is missing.
pub(crate) fn dist(parts: &[&str]) -> Option<PathBuf> {
    let folder = std::env::var_os("FERRITE_DIST")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist"), PathBuf::from);
    for part in parts {
        if !folder.join(part).exists() {
            skipped(&format!("{part} is not built"));
            return None;
        }
    }
    Some(folder)
}

/// The stock library, if it is in the cache or named: tests do not download.
pub(crate) fn stock_nccl() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let cached = cache.map(|cache| cache.join("ferrite/nccl-2.21.5/libnccl.so.2"));
    let named = std::env::var_os("FERRITE_NCCL").map(PathBuf::from);
    let found = named.or(cached).filter(|path| path.exists());
    if found.is_none() {
        skipped("libnccl.so.2 of NCCL 2.21.5 is not in the cache (`ferrite wheel` fetches it)");
    }
    found
}

/// Said past the test harness's capture.
pub(crate) fn skipped(what: &str) {
    let line = format!("skipped: {what}\n");
    std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).expect("stderr is open");
}

/// A fresh empty folder for one test.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    if folder.exists() {
        std::fs::remove_dir_all(&folder).expect("the old folder can be removed");
    }
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    folder
}

/// What the tool did with these arguments: exit code, stdout, stderr.
pub(crate) fn ferrite(arguments: &[&str], environment: &[(&str, &str)]) -> (i32, String, String) {
    let _turn = Turn::wait();
    let output = Command::new(env!("CARGO_BIN_EXE_ferrite"))
        .args(arguments)
        // Where a report goes that no argument sends elsewhere.
        .current_dir(scratch(&format!("working-folder-{arguments:p}")))
        .env_remove("RUST_LOG")
        .envs(environment.iter().copied())
        .output()
        .expect("the tool can be started");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code().expect("it was not killed"), text(output.stdout), text(output.stderr))
}
