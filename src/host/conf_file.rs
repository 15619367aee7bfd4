//! NCCL's configuration files, whose lines `NAME=VALUE` NCCL puts into the environment, unless the
//! variable is set.

use std::path::{Path, PathBuf};

/// A line that sets a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its number, from 1 on.
    pub number: usize,
    /// Everything before the first `=`, blanks included.
    pub name: String,
    /// Everything after it, blanks included.
    pub value: String,
}

/// The lines of a file's `text` that set a variable. Since NCCL 2.26 a `#` in the first column
/// makes a comment (`comments`); since 2.30 a line may end in a carriage return (`returns`).
pub fn lines(text: &str, comments: bool, returns: bool) -> Vec<Line> {
    let numbered =
        text.split('\n').zip(1..).filter(|(line, _)| !(comments && line.starts_with('#')));
    let set = numbered.filter_map(|(line, number)| {
        let line = if returns { line.strip_suffix('\r').unwrap_or(line) } else { line };
        let (name, value) = line.split_once('=').filter(|(name, _)| !name.is_empty())?;
        Some(Line { number, name: name.to_owned(), value: value.to_owned() })
    });
    set.collect()
}

/// The file and the line from which the variable `name` has its `value` in this process, if known:
/// the process was started without it, and one of the files that NCCL reads sets it.
pub fn source(name: &str, value: &str) -> Option<(PathBuf, usize)> {
    let started = std::fs::read("/proc/self/environ").ok()?;
    let is_it = |text: &[u8]| {
        text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
    };
    if started.split(|byte| *byte == 0).any(is_it) {
        return None;
    }
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let own = set("NCCL_CONF_FILE").map(PathBuf::from);
    let own = own.or_else(|| set("HOME").map(|home| Path::new(&home).join(".nccl.conf")));
    own.into_iter().chain([PathBuf::from("/etc/nccl.conf")]).find_map(|path| {
        // A named pipe has no end.
        let text = path.is_file().then(|| std::fs::read(&path).ok())??;
        let lines = lines(&String::from_utf8_lossy(&text), true, true);
        let line =
            lines.into_iter().find(|line| line.name == name && line.value.trim() == value)?;
        Some((path, line.number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, comments: bool, returns: bool) -> Vec<(String, String)> {
        lines(text, comments, returns).into_iter().map(|line| (line.name, line.value)).collect()
    }

    #[test]
    fn blanks_belong_to_name_and_value_and_comments_begin_in_the_first_column() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let text = "A=1\n B = 2 # two\n#C=3\n\nD\n=E\nF=\nG=g=h\r\n #H=4";
        let since_2_30 = [
            pair("A", "1"),
            pair(" B ", " 2 # two"),
            pair("F", ""),
            pair("G", "g=h"),
            pair(" #H", "4"),
        ];
        assert_eq!(read(text, true, true), since_2_30);
        assert_eq!(read("#C=3\nG=g\r\n", false, false), [pair("#C", "3"), pair("G", "g\r")]);
        assert_eq!(lines("\n# x\nA=1\n", true, true)[0].number, 3);
    }
}
