//! Completions of a command line.

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

/// What of a command a script tells, without hidden subcommands and options: clap_complete leaves none out.
fn without_hidden(command: &Command) -> Command {
    let shown = Command::new(command.get_name().to_owned())
        .args(command.get_arguments().filter(|one| !one.is_hide_set()).cloned())
        .subcommands(command.get_subcommands().filter(|one| !one.is_hide_set()).map(without_hidden));
    let shown = command.get_about().into_iter().fold(shown, |shown, about| shown.about(about.clone()));
    command.get_version().into_iter().fold(shown, |shown, version| shown.version(version.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    fn program() -> Command {
        let visible =
            Command::new("shown").about("Is there").arg(Arg::new("speed").long("speed").conflicts_with("slow"));
        let visible = visible.arg(Arg::new("slow").long("slow")).arg(Arg::new("inner").long("inner-only").hide(true));
        Command::new("program").version("1.2").subcommands([visible, Command::new("internal").hide(true)])
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
