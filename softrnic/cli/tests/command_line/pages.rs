//! Man pages and completions.

use std::process::Command;

use testkit::program;

use crate::program::{Folder, control, softrnic};

const COMMANDS: [&str; 9] = ["run", "env", "port", "gid", "fail", "inject", "stat", "clean", "completions"];

#[test]
fn the_help_lists_these_commands() {
    let help = control(&["--help"]);
    let commands = help.split("Commands:\n").nth(1).expect("it lists them").split("\n\n").next().unwrap_or_default();
    let names: Vec<&str> = commands
        .lines()
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(names, [&COMMANDS[..], &["help"]].concat());
}

#[test]
fn each_command_has_a_man_page() {
    let folder = Folder::new();
    assert_eq!(control(&["man", folder.path().to_str().expect("UTF-8")]), "");
    let pages = COMMANDS.iter().map(|name| format!("softrnic-{name}.1"));
    let mut wanted: Vec<String> =
        pages.chain(["softrnic.1", "softrnic-gid-add.1", "softrnic-gid-remove.1"].map(str::to_owned)).collect();
    wanted.sort_unstable();
    assert_eq!(folder.names(), wanted);
}

#[test]
fn the_script_for_each_shell_names_each_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = control(&["completions", shell]);
        assert!(COMMANDS.iter().all(|name| script.contains(name)), "{shell}: {script}");
    }
}

/// What bash offers for the last of `words`.
fn offered(folder: &Folder, words: &[&str]) -> Vec<String> {
    let file = folder.path().join("script");
    std::fs::write(&file, control(&["completions", "bash"])).expect("it can be written");
    let complete = r#"
        source "$1" && shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _softrnic softrnic "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", complete, "bash"]).arg(&file).args(words);
    program::stdout_of(&mut command).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    let folder = Folder::new();
    assert_eq!(offered(&folder, &["softrnic", "inj"]), ["inject"]);
    assert_eq!(offered(&folder, &["softrnic", "gid", "0/1", "rem"]), ["remove"]);
    assert_eq!(offered(&folder, &["softrnic", "port", "--band"]), ["--bandwidth"]);
    assert_eq!(offered(&folder, &["softrnic", "stat", "--fab"]), ["--fabric"]);
}

#[test]
fn an_unknown_shell_and_a_folder_that_cannot_be_written_are_named_and_end_with_2() {
    let folder = Folder::new();
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("it can be written");
    let below = file.join("man1").to_str().expect("UTF-8").to_owned();
    for (args, says) in [
        (["completions", "tcsh"], "'tcsh'".to_owned()),
        (["man", &below], format!("softrnic: cannot write {below}: Not a directory")),
    ] {
        let output = softrnic(&args);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {told}");
        assert!(told.contains(&says), "{args:?}: {told}");
    }
}
