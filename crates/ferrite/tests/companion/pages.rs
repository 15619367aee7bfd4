//! What describes the command line elsewhere: man pages and completions.

use std::path::Path;
use std::process::Command;

use testkit::{Scratch, program};

use crate::common::ferrite;

/// The subcommands that the help lists.
fn listed() -> Vec<String> {
    let (_, help, _) = ferrite(&["--help"], &[]);
    let commands = help.split("Commands:\n").nth(1).expect("it lists them").split("\n\n").next().unwrap_or_default();
    let names = commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<String> = names.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect();
    assert!(names.len() > 15 && names.contains(&"doctor".to_owned()), "{names:?}");
    names
}

fn script(shell: &str) -> String {
    let (code, script, stderr) = ferrite(&["completions", shell], &[]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    script
}

/// What bash offers for the last of these words.
fn offered(folder: &Path, words: &[&str]) -> Vec<String> {
    let file = folder.join("ferrite");
    std::fs::write(&file, script("bash")).expect("it can be written");
    let complete = r#"
        set -e
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        function=$(complete -p ferrite | sed 's/.*-F \([^ ]*\).*/\1/')
        "$function" ferrite "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", complete, "bash"]).arg(&file).args(words);
    program::stdout_of(&mut command).lines().map(str::to_owned).collect()
}

#[test]
fn each_listed_command_has_a_man_page_and_no_other_has() {
    let folder = Scratch::new();
    let (code, stdout, stderr) = ferrite(&["man", folder.join("new/man1").to_str().expect("it is text")], &[]);
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "", ""));
    let entries = std::fs::read_dir(folder.join("new/man1")).expect("it was made").flatten();
    let mut found: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let mut wanted: Vec<String> =
        listed().iter().filter(|name| *name != "help").map(|n| format!("ferrite-{n}.1")).collect();
    wanted.push("ferrite.1".to_owned());
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
    let page = std::fs::read_to_string(folder.join("new/man1/ferrite-paths.1")).expect("it was made");
    for words in ["\\-\\-interval", "FERRITE_STATS_DIR", "Exit code 0: shown"] {
        assert!(page.contains(words), "{words} is missing: {page}");
    }
}

#[test]
fn the_script_for_each_shell_names_each_listed_command_and_no_other() {
    for shell in ["bash", "zsh", "fish"] {
        let script = script(shell);
        for name in listed() {
            assert!(script.contains(&name), "{shell}: {name}");
        }
        for hidden in ["check-worker", "doctor-verbs"] {
            assert!(!script.contains(hidden), "{shell}: {hidden}");
        }
    }
}

#[test]
fn bash_completes_commands_options_and_values() {
    let folder = Scratch::new();
    assert_eq!(offered(&folder, &["ferrite", "do"]), ["doctor"]);
    let mut all = offered(&folder, &["ferrite", ""]);
    all.retain(|word| !word.starts_with('-'));
    assert_eq!(all, listed());
    assert_eq!(offered(&folder, &["ferrite", "paths", "--int"]), ["--interval"]);
    assert_eq!(offered(&folder, &["ferrite", "completions", ""]), ["-h", "--help", "bash", "zsh", "fish"]);
}

#[test]
fn an_unknown_shell_is_named_with_those_that_are_known() {
    let (code, stdout, stderr) = ferrite(&["completions", "tcsh"], &[]);
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.contains("'tcsh'") && stderr.contains("bash, zsh, fish"), "{stderr}");
}

#[test]
fn a_folder_or_a_page_that_cannot_be_written_is_named() {
    let folder = Scratch::new();
    let file = folder.write("file", "");
    let below = file.join("man1");
    let (code, _, stderr) = ferrite(&["man", below.to_str().expect("it is text")], &[]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains(&format!("cannot write {}: Not a directory", below.display())), "{stderr}");
    std::fs::create_dir(folder.join("ferrite-doctor.1")).expect("a folder can be made");
    let (code, _, stderr) = ferrite(&["man", folder.to_str().expect("it is text")], &[]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("ferrite-doctor.1: Is a directory"), "{stderr}");
}
