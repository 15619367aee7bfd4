//! Prints the environment in which programs use the device.

use std::ffi::OsString;

use clap::Args;
use serde_json::{Map, Value};

use crate::outcome::{Failure, print};
use crate::settings::Settings;

/// Prints the environment in which programs use the device, for a shell: eval "$(softrnic env)"
///
/// What is started with it takes part in one fabric, as below `softrnic run`. Which programs these are is not known, so those that
/// load RDMA drivers or librdmacm have to be thought of: --tools. If something is wrong, nothing is printed for the shell, and `eval` of
/// nothing succeeds: a script that is to stop there says settings=$(softrnic env) before eval "$settings".
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// One JSON object, of names and values
    #[arg(long)]
    json: bool,
    /// Lines NAME=value without quotes, as the file has them that docker takes by --env-file, and that of GITHUB_ENV
    #[arg(long, conflicts_with = "json")]
    env_file: bool,
    #[command(flatten)]
    settings: Settings,
}

impl Options {
    pub(crate) fn show(&self, fabric: Option<&str>) -> Result<(), Failure> {
        let text = self.text(fabric).map_err(Failure::Refused)?;
        print(&text)
    }

    fn text(&self, fabric: Option<&str>) -> Result<String, String> {
        let set = self.settings.variables(fabric, None)?;
        for (name, value) in &set {
            // SAFETY: this program has one thread.
            unsafe { std::env::set_var(name, value) };
        }
        // Whether there can be such a device.
        ibverbs::control::planned()?;
        let set = set.into_iter().map(|(name, value)| Ok((name, utf8(name, value)?)));
        let set: Vec<_> = set.collect::<Result<_, String>>()?;
        if self.json {
            let object = set.into_iter().map(|(name, value)| (name.to_owned(), Value::String(value)));
            return Ok(format!("{:#}\n", Value::Object(object.collect::<Map<_, _>>())));
        }
        set.iter()
            .map(|(name, value)| if self.env_file { line(name, value) } else { Ok(export(name, value)) })
            .collect()
    }
}

fn utf8(name: &str, value: OsString) -> Result<String, String> {
    value.into_string().map_err(|value| format!("{name}={}: must be UTF-8", value.to_string_lossy()))
}

/// For any shell of POSIX.
fn export(name: &str, value: &str) -> String {
    format!("export {name}='{}'\n", value.replace('\'', r"'\''"))
}

fn line(name: &str, value: &str) -> Result<String, String> {
    if value.contains('\n') {
        return Err(format!("{name} has several lines, which such a file cannot have: without --env-file"));
    }
    Ok(format!("{name}={value}\n"))
}

#[cfg(test)]
mod tests {
    use super::{export, line};

    #[test]
    fn values_are_quoted_for_a_shell() {
        assert_eq!(export("A", "it's $HOME"), "export A='it'\\''s $HOME'\n");
    }

    #[test]
    fn a_value_of_two_lines_is_none_for_a_file() {
        assert_eq!(line("A", "b c").as_deref(), Ok("A=b c\n"));
        assert!(line("A", "b\nc").is_err());
    }
}
