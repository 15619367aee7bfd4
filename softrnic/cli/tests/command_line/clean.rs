//! Files that killed processes leave, and their removal.

use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use crate::program::{FORKS, Folder, Holder, LibraryDir, hold_if_started, in_other_namespace};
use testkit::process::this_program;
use testkit::{require, skipped};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What `softrnic clean` says; it must succeed.
fn clean(folder: &Folder, args: &[&str]) -> String {
    let output = folder.command(&[&["clean"], args].concat()).output().expect("runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn clean_removes_the_dead_and_tells_of_the_living() {
    hold_if_started();
    let folder = Folder::new();
    assert!(clean(&folder, &[]).contains("there is no fabric"));
    let (killed, running) = (folder.hold("killed"), folder.hold("running"));
    std::fs::write(folder.path().join("other"), "no fabric").expect("a file");
    assert_eq!(clean(&folder, &[]), "killed: in use\nrunning: in use\n");
    drop(killed.kill());
    assert_eq!(folder.names(), ["killed", "other", "running"]);
    assert_eq!(clean(&folder, &["--fabric", "running"]), "running: in use\n");
    for dry in [&[][..], &["--dry-run"], &["--fabric", "killed", "--dry-run"]] {
        let printed = clean(&folder, dry);
        assert!(printed.starts_with("killed: dead, ") && printed.contains(" KiB\n"), "{printed}");
        assert!(
            printed.ends_with("softrnic clean --all removes the dead ones, --fabric NAME one of them\n"),
            "{printed}"
        );
        assert_eq!(folder.names(), ["killed", "other", "running"]);
    }
    let printed = clean(&folder, &["--all"]);
    assert!(printed.starts_with("killed: removed, ") && printed.ends_with(" KiB\nrunning: in use\n"), "{printed}");
    assert_eq!(folder.names(), ["other", "running"]);
    running.end();
    assert_eq!(folder.names(), ["other"]);
}

/// A process id says nothing in another namespace.
#[test]
fn a_fabric_in_another_process_id_namespace_lives() {
    hold_if_started();
    let starter = require!(in_other_namespace(&this_program()));
    let folder = Folder::new();
    let (there, here) = (folder.hold_by("there", starter), folder.hold("here"));
    assert_eq!(clean(&folder, &[]), "here: in use\nthere: in use\n");
    let mut command = in_other_namespace(Path::new(env!("CARGO_BIN_EXE_softrnic"))).expect("as before");
    let output = command.arg("clean").env("SOFTRNIC_SHM_DIR", folder.path()).output().expect("runs");
    assert_eq!(text(&output.stdout), "here: in use\nthere: in use\n", "{}", text(&output.stderr));
    there.end();
    here.end();
    assert_eq!(folder.names(), [""; 0]);
}

/// Another user's fabric is left alone, though nobody is seen to use it.
#[test]
fn a_fabric_of_another_user_stays() {
    hold_if_started();
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return skipped("root, to give a file to another user");
    }
    let folder = Folder::new();
    drop(folder.hold("theirs").kill());
    chown(folder.path().join("theirs"), Some(65534), None).expect("root may");
    assert!(clean(&folder, &["--all"]).starts_with("there is no fabric in "));
    assert_eq!(folder.names(), ["theirs"]);
    chown(folder.path().join("theirs"), Some(0), None).expect("root may");
    assert!(clean(&folder, &["--fabric", "theirs"]).starts_with("theirs: removed, "));
}

/// A forked child takes no part in the fabric of its parent: once the parent is killed, nobody uses the fabric.
#[test]
fn a_forked_child_keeps_no_fabric() {
    hold_if_started();
    let folder = Folder::new();
    let holder = folder.hold_as(Command::new(this_program()), &[("SOFTRNIC_FABRIC", "one"), (FORKS, "1")]);
    assert_eq!(clean(&folder, &[]), "one: in use\n");
    let _child_waits = holder.kill();
    let printed = clean(&folder, &["--all"]);
    assert!(printed.starts_with("one: removed"), "{printed}");
}

/// This test, started again by `softrnic run`, which gives it a fabric.
fn run(folder: &Folder, library: &LibraryDir) -> Holder {
    let mut starter = folder.command(&["run", "--library"]);
    starter.arg(library.path()).arg(this_program());
    folder.hold_as(starter, &[])
}

#[test]
fn a_run_removes_what_killed_runs_have_left() {
    hold_if_started();
    let (folder, library) = (Folder::new(), LibraryDir::new());
    let (killed, running) = (run(&folder, &library), run(&folder, &library));
    let named = folder.hold("named");
    let names = folder.names();
    assert!(names.len() == 3 && names[1..].iter().all(|name| name.starts_with("softrnic-run-")), "{names:?}");
    drop(killed.kill());
    drop(named.kill());
    assert_eq!(folder.names().len(), 3);
    let next = folder.command(&["run", "--library"]).arg(library.path()).args(["--", "true"]).output().expect("runs");
    assert!(next.status.success(), "{}", text(&next.stderr));
    // The file of a fabric with a given name stays, for the user to look at.
    let pid = format!("softrnic-run-{}-", running.pid());
    let left = folder.names();
    assert!(left.len() == 2 && left[0] == "named" && left[1].starts_with(&pid), "{left:?}");
    running.end();
    assert_eq!(folder.names(), ["named"]);
}
