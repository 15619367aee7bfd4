//! The commands by which a program prints a shell's completions of its command line and writes its
//! man pages. Programs have them as subcommands; both are made of what clap knows of the command
//! line.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use clap::builder::Resettable;
use clap::{Args, Command, ValueEnum};
use clap_complete::{generate, shells};

/// Prints a script that completes this command line in a shell.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell that reads the script
    shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Completions {
    /// The script for `command`.
    #[must_use]
    pub fn text(&self, command: &Command) -> String {
        let mut shown = without_hidden(command);
        let name = command.get_name();
        let mut script = Vec::new();
        match self.shell {
            Shell::Bash => generate(shells::Bash, &mut shown, name, &mut script),
            Shell::Zsh => generate(shells::Zsh, &mut shown, name, &mut script),
            Shell::Fish => generate(shells::Fish, &mut shown, name, &mut script),
        }
        String::from_utf8_lossy(&script).into_owned()
    }
}

/// What of a command a script tells, without hidden subcommands and options: clap_complete leaves
/// none out.
fn without_hidden(command: &Command) -> Command {
    let shown = Command::new(command.get_name().to_owned())
        .args(command.get_arguments().filter(|one| !one.is_hide_set()).cloned())
        .subcommands(
            command.get_subcommands().filter(|one| !one.is_hide_set()).map(without_hidden),
        );
    let shown =
        command.get_about().into_iter().fold(shown, |shown, about| shown.about(about.clone()));
    command
        .get_version()
        .into_iter()
        .fold(shown, |shown, version| shown.version(version.to_owned()))
}

/// Writes the man pages of this program, one for it and one for each subcommand, as DIR/NAME.1.
#[derive(Debug, Args)]
pub struct Man {
    /// Folder for the pages; it is made if it is not there
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// A page or its folder that cannot be written.
#[derive(Debug)]
pub struct CannotWrite {
    /// The page or the folder.
    pub path: PathBuf,
    /// What the system answered.
    pub source: io::Error,
}

impl fmt::Display for CannotWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write {}: {}", self.path.display(), self.source)
    }
}

impl std::error::Error for CannotWrite {}

impl Man {
    /// Writes the pages of `command`. They have no date, and its version without what follows a
    /// `+`: each build of a version writes the same.
    pub fn write(&self, command: Command) -> Result<(), CannotWrite> {
        let failed = |path: &Path, source| CannotWrite { path: path.to_owned(), source };
        std::fs::create_dir_all(&self.folder).map_err(|problem| failed(&self.folder, problem))?;
        for (name, text) in pages(command) {
            let path = self.folder.join(name);
            std::fs::write(&path, text).map_err(|problem| failed(&path, problem))?;
        }
        Ok(())
    }
}

/// The file name and the text of each page.
fn pages(command: Command) -> Vec<(String, String)> {
    let version = command
        .get_version()
        .and_then(|version| version.split('+').next())
        .unwrap_or_default()
        .to_owned();
    let source = format!("{} {version}", command.get_name());
    // `help` has what the pages have.
    let mut command =
        command.version(version).long_version(Resettable::Reset).disable_help_subcommand(true);
    // So that subcommands know the names of those above them.
    command.build();
    let mut made = Vec::new();
    add(&command, &source, &mut made);
    made
}

/// The page of `command` and those of its subcommands, to `made`.
fn add(command: &Command, source: &str, made: &mut Vec<(String, String)>) {
    let man = clap_mangen::Man::new(command.clone()).source(source);
    let mut text = Vec::new();
    man.render(&mut text).expect("memory takes every text");
    made.push((man.get_filename(), with_notes(&String::from_utf8_lossy(&text))));
    for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        add(one, source, made);
    }
}

/// The page with what help has behind its options as notes, whose lines end where they end there.
fn with_notes(page: &str) -> String {
    let Some((before, notes)) = page.split_once("\n.SH EXTRA\n") else {
        return page.to_owned();
    };
    let mut text = format!("{before}\n.SH NOTES\n.ad l\n.nh\n");
    let mut is_table = false;
    for line in notes.lines() {
        // An indented line begins anew by itself; what follows it would be joined to it.
        if is_table && !line.starts_with([' ', '.']) && !line.is_empty() {
            text += ".br\n";
        }
        is_table = line.starts_with(' ');
        text += line;
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    fn program() -> Command {
        let visible = Command::new("shown")
            .about("Is there")
            .arg(Arg::new("speed").long("speed").conflicts_with("slow"));
        let visible = visible
            .arg(Arg::new("slow").long("slow"))
            .arg(Arg::new("inner").long("inner-only").hide(true));
        Command::new("program")
            .version("1.2")
            .subcommands([visible, Command::new("internal").hide(true)])
    }

    #[test]
    fn a_script_names_what_the_help_names_and_nothing_hidden() {
        for shell in Shell::value_variants() {
            let script = Completions { shell: *shell }.text(&program());
            for word in ["shown", "speed", "slow", "version"] {
                assert!(script.contains(word), "{shell:?} lacks {word}: {script}");
            }
            for word in ["internal", "inner"] {
                assert!(!script.contains(word), "{shell:?} has {word}: {script}");
            }
        }
    }
}

#[cfg(test)]
mod man_tests {
    use super::*;

    fn program() -> Command {
        let inner = Command::new("outer")
            .about("Has one")
            .subcommand(Command::new("inner").after_help("One:\n  1\nTwo:\n  2\n\nEnd"));
        let program =
            Command::new("program").version("1.2+0123").long_version("1.2+0123\nand more");
        program.subcommands([inner, Command::new("internal").hide(true)])
    }

    #[test]
    fn each_command_has_a_page_but_hidden_ones() {
        let names: Vec<String> = pages(program()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["program.1", "program-outer.1", "program-outer-inner.1"]);
    }

    #[test]
    fn a_page_tells_the_version_and_neither_the_commit_nor_a_date() {
        for (name, text) in pages(program()) {
            let stem = name.trim_end_matches(".1");
            assert!(text.contains(&format!(".TH {stem} 1  \"program 1.2\"")), "{name}: {text}");
            assert!(!text.contains("0123") && !text.contains("and more"), "{name}: {text}");
        }
    }

    #[test]
    fn what_stands_behind_the_options_is_notes_with_the_same_lines() {
        let pages = pages(program());
        assert!(
            pages[2].1.ends_with(".SH NOTES\n.ad l\n.nh\nOne:\n  1\n.br\nTwo:\n  2\n\nEnd\n"),
            "{}",
            pages[2].1
        );
    }
}
