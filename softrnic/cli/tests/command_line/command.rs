//! The command line: which fabric it changes, how it ends, and how it finds what a program needs.

use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::node::Node;
use crate::common::verbs::library_path;
use crate::program::{Folder, control, hold_if_started, softrnic};
use testkit::process::this_program;
use testkit::softrnic::Softrnic;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// This test program, to be started in a session of its own, as from another terminal.
fn in_other_session() -> Command {
    let mut starter = Command::new(this_program());
    // SAFETY: setsid is async-signal-safe.
    unsafe { starter.pre_exec(|| if libc::setsid() > 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }) };
    starter
}

const CHANGES: [&[&str]; 5] = [
    &["port", "0/1", "down"],
    &["gid", "0/1", "remove", "1"],
    &["fail", "softrnic1"],
    &["inject", "drop"],
    &["inject", "--clear"],
];

#[test]
fn what_is_anothers_is_changed_only_by_its_name() {
    hold_if_started();
    Softrnic::new().alone(change_mine_and_theirs);
}

/// Changes fabrics of this terminal session and of another one. The process leads a session of its own: the
/// session in which the tests run may have no number here, as in a container.
fn change_mine_and_theirs() {
    // SAFETY: no preconditions.
    assert!(unsafe { libc::setsid() } > 0, "a process that leads no group");
    let folder = Folder::new();
    let theirs = folder.hold_by("theirs", in_other_session());
    let run = |args: &[&str]| folder.command(args).output().expect("runs");
    let state = |fabric: &str| {
        let seen = [run(&["stat", "--json", "--fabric", fabric]), run(&["inject", "--fabric", fabric])];
        seen.map(|output| text(&output.stdout))
    };
    let before = state("theirs");
    let all_refused = |says: &str| {
        for change in CHANGES {
            let output = run(change);
            let told = text(&output.stderr);
            assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{change:?}: {told}");
            assert!(told.contains("--fabric") && told.contains("SOFTRNIC_FABRIC") && told.contains(says), "{told}");
        }
    };
    all_refused(": theirs\n");
    let mine = folder.hold("mine");
    for (change, says) in CHANGES.iter().zip([
        "fabric mine: softrnic0/1 down\n",
        "fabric mine: softrnic0/1 gid 1 removed\n",
        "fabric mine: softrnic1 failed for good\n",
        "fabric mine: 1 fault rule(s) in force\n  1  drop  applied 0\n",
        "fabric mine: 0 fault rule(s) in force\n",
    ]) {
        let output = run(change);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), says), "{}", text(&output.stderr));
    }
    let also_mine = folder.hold("also-mine");
    all_refused(": also-mine, mine, theirs\n");
    assert_eq!(state("theirs"), before, "untouched");
    let named = run(&["--fabric", "theirs", "port", "0/1", "--mtu", "1024", "--latency-us", "2"]);
    assert_eq!(text(&named.stdout), "fabric theirs: softrnic0/1 latency 2 us, mtu 1024\n");
    assert_ne!(state("theirs"), before);
    [theirs, mine, also_mine].into_iter().for_each(crate::program::Holder::end);
}

#[test]
fn a_wrong_request_ends_with_2() {
    for args in [
        &[][..],
        &["no-such-command"],
        &["port"],
        &["stat", "--no-such-option"],
        &["stat", "--fabric", "no-such-fabric"],
        &["run"],
        &["run", "--no-such-option", "true"],
        &["run", "--library", "/", "--", "true"],
    ] {
        let output = softrnic(args);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
    Softrnic::new().alone(|| {
        let _node = Node::new(0, 64);
        for args in [&["port", "0/1"][..], &["port", "0/2", "down"], &["inject", "dorp"], &["inject", "--remove", "9"]]
        {
            assert_eq!(softrnic(args).status.code(), Some(2), "{args:?}");
        }
        control(&["fail", "0"]);
        assert_eq!(softrnic(&["port", "0/1", "up"]).status.code(), Some(1), "tried, and failed");
    });
}

/// As the other programs do.
#[test]
fn output_that_is_lost_ends_with_2() {
    Softrnic::new().alone(|| {
        let _node = Node::new(0, 64);
        for args in [
            &["--help"][..],
            &["run", "--help"],
            &["--version"],
            &["stat"],
            &["stat", "--json"],
            &["port", "0/1", "up"],
            &["gid", "0/1", "remove", "9"],
            &["inject", "drop times=1"],
            &["inject"],
        ] {
            let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
            let (reader, closed) = std::io::pipe().expect("a pipe");
            drop(reader);
            for out in [Stdio::from(full), Stdio::from(closed)] {
                let mut command = Command::new(env!("CARGO_BIN_EXE_softrnic"));
                let output = command.args(args).stdout(out).stderr(Stdio::piped()).spawn().expect("start");
                let output = output.wait_with_output().expect("wait");
                let told = text(&output.stderr);
                assert_eq!(output.status.code(), Some(2), "{args:?}: {told}");
                assert!(told.contains("cannot write to standard output") && !told.contains("panicked"), "{told}");
            }
        }
    });
}

/// A folder as an installation has it: the program, and its library beside it. The other flavour is a library of which
/// only the versions are right.
fn install(folder: &Path) {
    for dir in ["bin", "softrnic"] {
        std::fs::create_dir_all(folder.join(dir)).expect("a folder");
    }
    std::fs::copy(env!("CARGO_BIN_EXE_softrnic"), folder.join("bin/softrnic")).expect("copy");
    symlink(library_path(), folder.join("softrnic/libibverbs.so.1")).expect("a link");
}

/// Compiles `source` with these arguments in `folder`.
fn compile(folder: &Path, source: &str, args: &[&str]) {
    std::fs::write(folder.join("source.c"), source).expect("write");
    let mut cc = Command::new("cc");
    let status = cc.current_dir(folder).arg("source.c").args(args).status().expect("a C compiler");
    assert!(status.success(), "{args:?}");
}

fn installed(folder: &Path, args: &[&str]) -> Output {
    Command::new(folder.join("bin/softrnic")).current_dir(folder).args(args).output().expect("runs")
}

/// A program that is linked with drivers wants private symbols: it gets the library that has them.
#[test]
fn a_program_gets_the_library_that_it_needs() {
    let folder = Folder::new();
    let folder = folder.path();
    install(folder);
    std::fs::write(folder.join("map"), "IBVERBS_PRIVATE_77 { global: softrnic_private; };").expect("write");
    std::fs::create_dir_all(folder.join("made")).expect("a folder");
    let library = ["-shared", "-fPIC", "-Wl,--version-script=map", "-Wl,-soname,libibverbs.so.1"];
    compile(
        folder,
        "int softrnic_private(void) { return 5; }",
        &[&library[..], &["-o", "made/libibverbs.so.1"]].concat(),
    );
    let program = "int softrnic_private(void); int main(void) { return softrnic_private(); }";
    compile(folder, program, &["-o", "program", "made/libibverbs.so.1"]);

    let output = installed(folder, &["run", "./program"]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("./program needs IBVERBS_PRIVATE_77") && told.contains("../softrnic-tools"), "{told}");
    let output = installed(folder, &["run", "--library", "softrnic", "./program"]);
    let told = text(&output.stderr);
    assert!(output.status.code() == Some(2) && told.contains("needs IBVERBS_PRIVATE_77, which"), "{told}");

    std::fs::rename(folder.join("made"), folder.join("softrnic-tools")).expect("rename");
    for args in [&["run", "./program"][..], &["run", "--", "./program"], &["run", "--tools", "./program", "--devices"]]
    {
        let output = installed(folder, args);
        let told = text(&output.stderr);
        assert_eq!((output.status.code(), told.contains("as with --tools")), (Some(5), args[1] != "--tools"), "{told}");
    }
    let show = ["run", "--devices", "3", "sh", "-c", "echo ${LD_LIBRARY_PATH%%:*} $SOFTRNIC_DEVICES $0", "--devices=2"];
    let plain = folder.join("softrnic").canonicalize().expect("the folder");
    assert_eq!(text(&installed(folder, &show).stdout), format!("{} 3 --devices=2\n", plain.display()));
}

#[test]
fn the_help_of_rules_has_whole_lines() {
    let help = control(&["inject", "--help"]);
    for line in [
        "A rule is ACTION[=VALUE] [KEY=VALUE ...]; without keys it applies to every message.\n",
        "  drop, drop-ack, delay=TIME, late=TIME, rnr, corrupt, slow=GB/s\n",
        "  device, peer, flow, opcode, message, every, chance, attempts, times\n",
    ] {
        assert!(help.contains(line), "{help}");
    }
    // Those that the reader of rules knows.
    let known = crate::program::refused(&["inject", "--fabric", "no-such-fabric", "drop"]);
    assert!(known.contains("no process uses a fabric"), "{known}");
}
