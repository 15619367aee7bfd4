//! What the tests share: fixtures compiled on first use.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

use lab::nccl::release;
use lab::nccl::release::NcclRelease;
use lab::pair::{PairPermit, Setting};
use lab::verbs::Verbs;
use testkit::{Missing, Scratch, c_library, program};

/// The software device with all that some cards and kernels do otherwise (softrnic/docs/cards.md),
/// as far as it fits together.
pub(crate) const OTHERWISE: [(&str, &str); 6] = [
    // Completions that outlive their queue pair, an own port that ends it at once, a step to RTR
    // that takes a second, and more.
    ("SOFTRNIC_DRIVER", "rxe"),
    ("SOFTRNIC_QPN_REUSE", "1"),
    ("SOFTRNIC_GIDS", "vlan"),
    ("SOFTRNIC_GRANT_MORE", "1"),
    ("SOFTRNIC_ZERO_KEYS", "1"),
    ("SOFTRNIC_ERROR_DROPS", "1"),
];

/// `tests/fixtures/NAME.c` as a shared object.
pub(crate) fn shared_object(name: &str, flags: &[&str]) -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = crate_folder.join(format!("tests/fixtures/{name}.c"));
    let include = format!("-I{}", crate_folder.join("../../include").display());
    c_library::shared_object(
        env!("CARGO_TARGET_TMPDIR"),
        &source,
        &[&["-O2", include.as_str()], flags].concat(),
    )
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

/// The folder with the built plugin and software device, with these parts.
pub(crate) fn dist(parts: &[&str]) -> Result<PathBuf, Missing> {
    for part in parts {
        testkit::dist::built(part)?;
    }
    Ok(testkit::dist::dist())
}

/// The stock library, if it is in the cache or named: tests do not download.
pub(crate) fn stock_nccl() -> Result<PathBuf, Missing> {
    let named = std::env::var_os("FERRITE_NCCL").map(PathBuf::from).filter(|path| path.exists());
    named.map_or_else(|| cached_nccl("2.21.5"), Ok)
}

/// The library of a release in the cache.
pub(crate) fn cached_nccl(release: &str) -> Result<PathBuf, Missing> {
    let release = NcclRelease::named(release).expect("it is known");
    let library = release::cached(release).expect("there is a folder for the cache");
    if library.exists() {
        return Ok(library);
    }
    Err(Missing(format!(
        "libnccl.so.2 of NCCL {release} is not in the cache (`ferrite wheel {release}` fetches it)"
    )))
}

/// The arguments in a line, separated by blanks. Single quotes keep blanks in an argument.
pub(crate) fn words(line: &str) -> Vec<&str> {
    let parts = line.split('\'').enumerate();
    let split = |(index, part): (usize, _)| match index % 2 {
        0 => str::split_whitespace(part).collect(),
        _ => vec![part],
    };
    parts.flat_map(split).collect()
}

/// [`ferrite`] with the arguments in a line.
pub(crate) fn run(line: &str, environment: &[(&str, &str)]) -> (i32, String, String) {
    ferrite(&words(line), environment)
}

/// What the tool did with these arguments: exit code, stdout, stderr.
pub(crate) fn ferrite(arguments: &[&str], environment: &[(&str, &str)]) -> (i32, String, String) {
    let _turn = PairPermit::wait();
    // Where a report goes that no argument sends elsewhere.
    let folder = Scratch::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrite"));
    command
        .args(arguments)
        .current_dir(folder.path())
        .env_remove("RUST_LOG")
        .envs(environment.iter().copied());
    let printed = program::run(&mut command);
    assert!(printed.status.code().is_some(), "it was killed: {printed}");
    printed.into_parts()
}
