//! What is wrong with the arguments is told before anything long begins, and leaves nothing behind.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::{fake_nccl, ferrite, loopback};
use testkit::Scratch;

fn text(path: &Path) -> &str {
    path.to_str().expect("it is text")
}

/// A `python3` that notes its calls in `calls` and fails, and an environment in which it is the one that is found and no
/// NCCL is there.
fn refused(arguments: &[&str]) -> (i32, String, String) {
    let folder = Scratch::new();
    let python = folder.join("python3");
    let calls = folder.join("calls");
    std::fs::write(&python, format!("#!/bin/sh\necho called >> {}\nexit 1\n", calls.display())).expect("it is written");
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).expect("it can be run");
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let cache = folder.join("cache");
    let env = [("PATH", path.as_str()), ("XDG_CACHE_HOME", text(&cache)), ("FERRITE_NCCL", "")];
    let (code, stdout, stderr) = ferrite(arguments, &env);
    assert!(!calls.exists(), "{arguments:?} fetches: {stderr}");
    (code, stdout, stderr)
}

#[test]
fn a_missing_plugin_is_told_before_anything_is_fetched() {
    let plugin = "/no/such/plugin.so";
    for arguments in [
        &["compare", "--verbs", "system", "--plugin", plugin][..],
        &["bench", "--verbs", "system", "--loader", plugin],
        &["verify", "--verbs", "system", "--loader", plugin],
        &["check", "--verbs", "system", "--loader", plugin],
        &["solo", "--verbs", "system", "--loader", plugin],
    ] {
        let (code, stdout, stderr) = refused(arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(stderr.contains("cannot open /no/such/plugin.so"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_file_that_is_no_plugin_is_told_before_anything_is_fetched() {
    let nccl = fake_nccl();
    let (code, _, stderr) = refused(&["compare", "--verbs", "system", "--plugin", text(&nccl)]);
    assert!(code == 2 && stderr.contains("it is not an NCCL network plugin"), "{stderr}");
    let plugin = loopback();
    let arguments = ["compare", "--verbs", "system", "--plugin", text(&plugin), "--baseline", text(&nccl)];
    let (code, _, stderr) = refused(&arguments);
    assert!(code == 2 && stderr.contains("it is not an NCCL network plugin"), "{stderr}");
}

#[test]
fn a_report_that_cannot_be_written_is_told_first() {
    let plugin = loopback();
    let (code, stdout, stderr) =
        refused(&["compare", "--verbs", "system", "--plugin", text(&plugin), "--report", "/dev/null/report"]);
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.contains("cannot create /dev/null/report; --report names another folder: "), "{stderr}");
    // The folder is there, and one of the files cannot be.
    let folder = Scratch::new();
    std::fs::create_dir_all(folder.join("report.svg")).expect("a folder can be made");
    let arguments = ["bench", "--verbs", "system", "--plugin", text(&plugin), "--report", text(&folder)];
    let (code, stdout, stderr) = refused(&arguments);
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.contains("report.svg: Is a directory"), "{stderr}");
    let left: Vec<_> = std::fs::read_dir(&folder).expect("it is there").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["report.svg"], "trying leaves files");
}

#[test]
fn results_of_checks_that_cannot_be_written_are_told_first() {
    let plugin = loopback();
    for option in ["--junit", "--json"] {
        let arguments = ["check", "--verbs", "system", "--plugin", text(&plugin), option, "/dev/null/results"];
        let (code, stdout, stderr) = refused(&arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{option}");
        assert!(stderr.contains("cannot write /dev/null/results"), "{stderr}");
    }
}

#[test]
fn an_existing_result_file_is_kept_if_the_arguments_are_wrong() {
    let folder = Scratch::new();
    let file = folder.join("results.xml");
    std::fs::write(&file, "of yesterday").expect("it can be written");
    let arguments = ["check", "--verbs", "system", "--plugin", "/no/such/plugin.so", "--junit", text(&file)];
    let (code, ..) = refused(&arguments);
    assert_eq!((code, std::fs::read_to_string(&file).expect("it is there").as_str()), (2, "of yesterday"));
}

/// PyTorch has brought it: in a container nothing of some hundred megabytes is fetched once more.
#[test]
fn a_release_that_python_has_here_is_not_fetched() {
    let machine = Scratch::new();
    let [bin, cache, home] = ["bin", "cache", "home"].map(|name| machine.join(name));
    let library = machine.join("lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2");
    for folder in [bin.as_path(), library.parent().expect("a folder")] {
        std::fs::create_dir_all(folder).expect("a folder");
    }
    std::fs::write(bin.join("python3"), "#!/bin/sh\nexit 1\n").expect("written");
    std::fs::set_permissions(bin.join("python3"), std::fs::Permissions::from_mode(0o755)).expect("it can be run");
    // The text is where the doctor reads the version.
    let mut bytes = std::fs::read(fake_nccl()).expect("it is there");
    bytes.extend(b"NCCL version 2.21.5\0");
    std::fs::write(&library, bytes).expect("written");
    let env = [
        ("PATH", text(&bin)),
        ("HOME", text(&home)),
        ("XDG_CACHE_HOME", text(&cache)),
        ("FERRITE_NCCL", ""),
        ("LD_LIBRARY_PATH", ""),
        ("PYTHONPATH", ""),
        ("VIRTUAL_ENV", ""),
        ("CONDA_PREFIX", ""),
    ];
    for arguments in [&["wheel"][..], &["wheel", "2.21.5"]] {
        let (code, stdout, stderr) = ferrite(arguments, &env);
        assert_eq!((code, stdout.trim_end()), (0, text(&library)), "{stderr}");
    }
    let (code, _, stderr) = ferrite(&["wheel", "2.28.9"], &env);
    assert!(code == 2 && stderr.contains("could not fetch"), "another release is not that one: {stderr}");
}

/// As `compare` and `cost`: without a word about the transport it is the plugin beside the program.
#[test]
fn the_plugin_beside_the_program_is_taken_where_none_is_named() {
    let dist = Scratch::new();
    for command in ["bench", "verify", "check", "solo", "outlast"] {
        let more: &[&str] = if command == "outlast" { &["--scenario", "random"] } else { &[] };
        let (code, stdout, stderr) = ferrite(&[&[command], more].concat(), &[("FERRITE_DIST", text(&dist))]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{command}: {stderr}");
        let missing = ["lib/libnccl-net.so", "softrnic"].iter().any(|part| stderr.contains(part));
        assert!(missing && !stderr.contains("required"), "{command}: {stderr}");
    }
}
