//! What killed processes leave, and who may remove it.

#[path = "../../softrnic/tests/common/mod.rs"]
mod common;
mod program;

use std::path::Path;
use std::process::Command;

use program::{Folder, HOLDS, Holder, LibraryDir, hold_if_asked, in_other_namespace};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn myself() -> Command {
    Command::new(std::env::current_exe().expect("own path"))
}

#[test]
fn holds_a_fabric_until_its_input_ends() {
    hold_if_asked();
}

/// What `softrnic clean` says; it must succeed.
fn clean(folder: &Folder, args: &[&str]) -> String {
    let output = folder.command(&[&["clean"], args].concat()).output().expect("runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn clean_removes_the_dead_and_tells_of_the_living() {
    let folder = Folder::new("clean");
    assert!(clean(&folder, &[]).contains("there is no fabric"));
    let (mut dead, living) = (folder.hold("dead"), folder.hold("living"));
    std::fs::write(folder.path().join("stranger"), "no fabric").expect("a file");
    assert_eq!(clean(&folder, &[]), "dead: in use\nliving: in use\n");
    dead.kill();
    assert_eq!(folder.names(), ["dead", "living", "stranger"]);
    assert_eq!(clean(&folder, &["--fabric", "living"]), "living: in use\n");
    let said = clean(&folder, &[]);
    assert!(said.starts_with("dead: removed, ") && said.ends_with(" KiB\nliving: in use\n"), "{said}");
    assert_eq!(folder.names(), ["living", "stranger"]);
    living.end();
    assert_eq!(folder.names(), ["stranger"]);
}

/// A process id says nothing in another namespace.
#[test]
fn a_fabric_in_another_process_id_namespace_lives() {
    let Some(starter) = in_other_namespace(&std::env::current_exe().expect("own path")) else { return };
    let folder = Folder::new("namespace");
    let (there, here) = (folder.hold_by("there", starter), folder.hold("here"));
    assert_eq!(clean(&folder, &[]), "here: in use\nthere: in use\n");
    let mut command = in_other_namespace(Path::new(env!("CARGO_BIN_EXE_softrnic"))).expect("as before");
    let output = command.arg("clean").env("SOFTRNIC_SHM_DIR", folder.path()).output().expect("runs");
    assert_eq!(text(&output.stdout), "here: in use\nthere: in use\n", "{}", text(&output.stderr));
    there.end();
    here.end();
    assert_eq!(folder.names(), [""; 0]);
}

/// What a process inherits when it is forked is not its own: its parent's death leaves nobody in the fabric.
#[test]
fn a_forked_child_keeps_no_fabric() {
    let folder = Folder::new("forked");
    let mut starter = myself();
    starter.args([program::HOLD, "--exact", "--nocapture"]).env(HOLDS, "fork");
    starter.env("SOFTRNIC_FABRIC", "one").env("SOFTRNIC_SHM_DIR", folder.path());
    let mut holder = Holder::wait_for(starter);
    assert_eq!(clean(&folder, &[]), "one: in use\n");
    holder.kill();
    let said = clean(&folder, &[]);
    assert!(said.starts_with("one: removed"), "{said}");
}

/// `softrnic run` of this test program, which takes part until it is killed or its input ends.
fn run(folder: &Folder, library: &LibraryDir) -> Holder {
    let mut starter = folder.command(&["run", "--library"]);
    starter.arg(library.path()).arg(std::env::current_exe().expect("own path"));
    starter.args([program::HOLD, "--exact", "--nocapture"]).env(HOLDS, "1").env("SOFTRNIC_QUIET", "1");
    Holder::wait_for(starter)
}

#[test]
fn a_run_removes_what_killed_runs_have_left() {
    let (folder, library) = (Folder::new("runs"), LibraryDir::new("runs-library"));
    let (mut dead, living) = (run(&folder, &library), run(&folder, &library));
    let mut named = folder.hold("named");
    let names = folder.names();
    assert!(names.len() == 3 && names[1..].iter().all(|name| name.starts_with("softrnic-run-")), "{names:?}");
    dead.kill();
    named.kill();
    assert_eq!(folder.names().len(), 3);
    let next = folder.command(&["run", "--library"]).arg(library.path()).args(["--", "true"]).output().expect("runs");
    assert!(next.status.success(), "{}", text(&next.stderr));
    // What has a name of its own may be looked at by whoever gave it.
    let pid = format!("softrnic-run-{}-", living.0.id());
    let left = folder.names();
    assert!(left.len() == 2 && left[0] == "named" && left[1].starts_with(&pid), "{left:?}");
    living.end();
    assert_eq!(folder.names(), ["named"]);
}
