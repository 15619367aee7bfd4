//! The stock library: found, fetched by a stand-in for pip, or refused in words that help.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::{fake_nccl, ferrite, shared_object};
use testkit::Scratch;

/// A folder with a `python3` that is this shell script.
fn python(folder: &Path, script: &str) -> PathBuf {
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).expect("a folder can be made");
    let path = bin.join("python3");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("it can be written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it can be run");
    bin
}

/// `ferrite wheel` with that python3 alone on the path and an empty cache.
fn wheel(folder: &Path, path: &Path) -> (i32, String, String) {
    let cache = folder.join("cache");
    let environment = [
        ("PATH", format!("{}:/usr/bin:/bin", path.display())),
        ("XDG_CACHE_HOME", cache.display().to_string()),
        ("FERRITE_NCCL", String::new()),
    ];
    let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    ferrite(&["wheel"], &environment)
}

/// A python3 that "downloads" and "unpacks" the given library, and counts its calls.
fn good_python(folder: &Path, library: &Path) -> PathBuf {
    let script = format!(
        r#"echo "$@" >> {log}
case "$2" in
pip) while [ "$1" != --dest ]; do shift; done; touch "$2/nvidia_nccl_cu12-2.21.5.whl" ;;
zipfile) mkdir -p "$5/nvidia/nccl/lib" && cp {library} "$5/nvidia/nccl/lib/libnccl.so.2" ;;
esac"#,
        log = folder.join("calls").display(),
        library = library.display()
    );
    python(folder, &script.replace("\"$5/", "\"${5}/"))
}

#[test]
fn the_library_is_fetched_once_and_verified() {
    let folder = Scratch::new();
    let bin = good_python(&folder, &fake_nccl());
    let (code, stdout, stderr) = wheel(&folder, &bin);
    let cached = folder.join("cache/ferrite/nccl-2.21.5/libnccl.so.2");
    assert_eq!((code, stdout.trim()), (0, cached.to_str().expect("it is text")), "{stderr}");
    let left: Vec<_> = std::fs::read_dir(cached.parent().expect("it has one")).expect("it is there").collect();
    assert_eq!(left.len(), 1, "scratch files were left: {left:?}");
    assert_eq!(wheel(&folder, &bin).0, 0);
    let calls = std::fs::read_to_string(folder.join("calls")).expect("python3 was called");
    assert_eq!(calls.lines().count(), 2, "{calls}");
    assert!(calls.contains("nvidia-nccl-cu12==2.21.5"), "{calls}");
}

#[test]
fn a_wrong_download_does_not_reach_the_cache() {
    let folder = Scratch::new();
    let other = shared_object("loopback", &["-DAS_NCCL=21903", "-DVTABLE_NAME=\"IB\""]);
    let (code, _, stderr) = wheel(&folder, &good_python(&folder, &other));
    assert_eq!(code, 2);
    assert!(stderr.contains("is NCCL 2.19.3; known are"), "{stderr}");
    assert!(!folder.join("cache/ferrite/nccl-2.21.5/libnccl.so.2").exists());
}

#[test]
fn a_failing_pip_is_quoted_with_the_way_out() {
    let folder = Scratch::new();
    let script = "for i in $(seq 0 19); do echo \"line $i\"; done; echo 'ERROR: no route to the index' >&2; exit 1";
    let (code, stdout, stderr) = wheel(&folder, &python(&folder, script));
    assert_eq!((code, stdout.as_str()), (2, ""));
    for words in [
        "could not fetch libnccl.so.2 of NCCL 2.21.5",
        "ERROR: no route to the index",
        "line 19",
        "--nccl PATH",
        "FERRITE_NCCL",
    ] {
        assert!(stderr.contains(words), "{words} is missing: {stderr}");
    }
    assert!(!stderr.contains("line 3\n"), "too much: {stderr}");
}

#[test]
fn a_missing_python_is_named() {
    let folder = Scratch::new();
    let cache = folder.join("cache").display().to_string();
    let environment = [("PATH", "/nonexistent"), ("XDG_CACHE_HOME", cache.as_str()), ("FERRITE_NCCL", "")];
    let (code, _, stderr) = ferrite(&["wheel"], &environment);
    assert_eq!(code, 2);
    assert!(stderr.contains("python3 did not start"), "{stderr}");
}

#[test]
fn a_named_file_wins_and_is_verified() {
    let good = fake_nccl().display().to_string();
    let (code, stdout, _) = ferrite(&["wheel"], &[("FERRITE_NCCL", good.as_str())]);
    assert_eq!((code, stdout.trim()), (0, good.as_str()));
    let (code, _, stderr) = ferrite(&["wheel", "--nccl", "/no/such/libnccl.so.2"], &[("FERRITE_NCCL", good.as_str())]);
    assert_eq!(code, 2);
    assert!(stderr.contains("/no/such/libnccl.so.2"), "{stderr}");
}

#[test]
fn a_broken_cache_says_what_to_delete() {
    let folder = Scratch::new();
    let cache = folder.join("cache/ferrite/nccl-2.21.5");
    std::fs::create_dir_all(&cache).expect("a folder can be made");
    std::fs::write(cache.join("libnccl.so.2"), "half a file").expect("it can be written");
    let (code, _, stderr) = wheel(&folder, Path::new("/nonexistent"));
    assert_eq!(code, 2);
    assert!(stderr.contains("delete it to have it fetched again"), "{stderr}");
}
