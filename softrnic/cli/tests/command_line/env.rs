//! The environment that `softrnic env` prints, as a step of a CI uses it.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};

use crate::common::verbs::library_path;
use crate::program::{Folder, LibraryDir, hold_if_started};
use testkit::Scratch;
use testkit::process::this_program;

/// `softrnic` as it is installed, with both flavours of the library; goes when dropped.
struct Installed(Scratch);

impl Installed {
    fn new() -> Self {
        let folder = Scratch::new();
        for flavour in ["softrnic", "softrnic-tools"] {
            fs::create_dir(folder.join(flavour)).expect("a folder");
            symlink(library_path(), folder.join(flavour).join("libibverbs.so.1")).expect("a link");
        }
        fs::create_dir(folder.join("bin")).expect("a folder");
        fs::copy(env!("CARGO_BIN_EXE_softrnic"), folder.join("bin/softrnic")).expect("a copy");
        Self(folder)
    }

    /// A script in which `softrnic` is a command, and which knows none of the device's variables.
    fn script(&self, text: &str) -> Output {
        let mut command = Command::new("sh");
        let path = format!("{}:{}", self.0.join("bin").display(), std::env::var("PATH").expect("PATH"));
        command.args(["-uc", text]).env("PATH", path).env_remove("LD_LIBRARY_PATH").env("SOFTRNIC_SHM_DIR", &*self.0);
        for name in ["SOFTRNIC_FABRIC", "SOFTRNIC_FAULTS", "SOFTRNIC_DEVICES", "NCCL_GIN_TYPE"] {
            command.env_remove(name);
        }
        command.output().expect("a shell")
    }

    /// What a script prints, which must succeed.
    fn prints(&self, text: &str) -> String {
        let output = self.script(text);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

#[test]
fn a_shell_has_the_device_after_one_line() {
    let installed = Installed::new();
    let shown = installed.prints(
        "eval \"$(softrnic env --devices 3 --faults 'drop chance=0.5; drop chance=0.25')\"
         echo \"$SOFTRNIC_DEVICES,$SOFTRNIC_FAULTS,$NCCL_IBVERBS_LIB,$LD_LIBRARY_PATH\"
         echo \"$SOFTRNIC_FABRIC\"; eval \"$(softrnic env)\"; echo \"$SOFTRNIC_FABRIC\"
         unset SOFTRNIC_FABRIC; eval \"$(softrnic env --tools)\"; echo \"$SOFTRNIC_FABRIC\"; echo \"${LD_LIBRARY_PATH%%:*}\"
         eval \"$(softrnic env --fabric mine)\"; echo \"$SOFTRNIC_FABRIC\"",
    );
    let lines: Vec<_> = shown.lines().collect();
    let root = installed.0.canonicalize().expect("it is there");
    let plain = root.join("softrnic").display().to_string();
    assert_eq!(lines[0], format!("3,drop chance=0.5; drop chance=0.25,{plain}/libibverbs.so.1,{plain}"));
    assert!(lines[1].starts_with("softrnic-run-"), "{shown}");
    assert_eq!(lines[2], lines[1], "the fabric that the shell has stays");
    assert_ne!(lines[3], lines[1], "shells that begin anew do not meet");
    assert_eq!(lines[4..], [root.join("softrnic-tools").display().to_string(), "mine".to_owned()]);
}

/// A program that is started with it takes part in the fabric, which the shell's `softrnic` shows without naming it.
#[test]
fn a_program_of_that_shell_takes_part() {
    hold_if_started();
    let (folder, library) = (Folder::new(), LibraryDir::new());
    let (softrnic, library) = (env!("CARGO_BIN_EXE_softrnic"), library.path().display());
    let set = format!("eval \"$({softrnic} env --library {library})\"; exec \"$0\" \"$@\"");
    let mut starter = Command::new("sh");
    starter.args(["-c", &set]).arg(this_program()).env_remove("SOFTRNIC_FABRIC");
    let holder = folder.hold_as(starter, &[]);
    let [name] = &folder.names()[..] else { panic!("{:?}", folder.names()) };
    assert!(name.starts_with("softrnic-run-"), "{name}");
    let shown = folder.command(&["stat"]).output().expect("runs");
    assert!(String::from_utf8_lossy(&shown.stdout).contains(&format!("process {}", holder.pid())), "{shown:?}");
    holder.end();
}

#[test]
fn other_programs_read_it_too() {
    let installed = Installed::new();
    let of_json = installed.prints("softrnic env --json --fabric mine --ports 2");
    let seen: serde_json::Value = serde_json::from_str(&of_json).expect("JSON");
    assert_eq!((seen["SOFTRNIC_FABRIC"].as_str(), seen["SOFTRNIC_PORTS"].as_str()), (Some("mine"), Some("2")));
    let of_file = installed.prints("softrnic env --env-file --fabric mine --ports 2");
    let mut names: Vec<_> = of_file.lines().map(|line| line.split_once('=').expect("NAME=value")).collect();
    names.sort_unstable();
    let seen = seen.as_object().expect("an object");
    assert_eq!(names, seen.iter().map(|(name, value)| (&name[..], value.as_str().expect("text"))).collect::<Vec<_>>());
}

#[test]
fn what_is_wrong_is_told_and_not_evaluated() {
    let installed = Installed::new();
    for (arguments, words) in [
        ("--devices 9", "SOFTRNIC_DEVICES=\"9\""),
        ("--faults nonsense", "SOFTRNIC_FAULTS: "),
        ("--faults 'port-down=1s device=softrnic7/1'", "SOFTRNIC_FAULTS: "),
        ("--json --env-file", "cannot be used with"),
        ("--env-file --faults 'drop chance=0.5\ndrop'", "several lines"),
        ("--library /no/such/folder", "/no/such/folder"),
        ("--faithful", "unexpected argument"),
    ] {
        let output = installed.script(&format!("softrnic env {arguments}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{arguments}: {said}");
        assert!(said.contains(words), "{arguments}: {said}");
    }
    fs::remove_dir_all(installed.0.join("softrnic-tools")).expect("it was there");
    let said = installed.script("settings=$(softrnic env --tools) || exit 7");
    assert_eq!(said.status.code(), Some(7), "{said:?}");
}
