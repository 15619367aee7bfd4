//! What can be done to a run, and when.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::outlast::plan::LineFault;

/// One thing that is done to a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A rule of the software device, in its language.
    Rule(String),
    /// All rules end.
    Clear,
    /// Another command of the software device: `port`, `gid` or `fail` with its words.
    Change(Vec<String>),
    /// The process of this rank is killed.
    Kill(usize),
    /// The process of this rank is stopped, or goes on if it was.
    Stop(usize),
    Continue(usize),
    /// The TCP connection of the connection's set-up, in the receiver's process.
    Line(LineFault),
}

impl Fault {
    /// # Errors
    /// [`Error::Usage`] with what is allowed. A rule is not looked into.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let wrong = |why: &str| Error::Usage(format!("--fault {text:?}: {why}"));
        match words[..] {
            [] => Err(wrong("it is empty")),
            ["clear"] => Ok(Self::Clear),
            ["kill", "sender"] => Ok(Self::Kill(0)),
            ["kill", "receiver"] => Ok(Self::Kill(1)),
            ["stop", "sender"] => Ok(Self::Stop(0)),
            ["stop", "receiver"] => Ok(Self::Stop(1)),
            ["continue", "sender"] => Ok(Self::Continue(0)),
            ["continue", "receiver"] => Ok(Self::Continue(1)),
            ["line", "cut"] => Ok(Self::Line(LineFault::Cut)),
            ["line", "silent", time] => {
                let time = parse_time(time).map_err(|why| wrong(&why))?;
                Ok(Self::Line(LineFault::Silent(time.as_millis() as u64)))
            }
            ["line", ..] => Err(wrong("it is `line cut` or `line silent TIME`")),
            ["port" | "gid" | "fail", _, ..] => Ok(Self::Change(words.iter().map(|word| (*word).into()).collect())),
            _ => Ok(Self::Rule(text.trim().into())),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => f.write_str(rule),
            Self::Clear => f.write_str("clear"),
            Self::Change(words) => f.write_str(&words.join(" ")),
            Self::Kill(rank) => write!(f, "kill {}", end_name(*rank)),
            Self::Stop(rank) => write!(f, "stop {}", end_name(*rank)),
            Self::Continue(rank) => write!(f, "continue {}", end_name(*rank)),
            Self::Line(LineFault::Cut) => f.write_str("line cut"),
            Self::Line(LineFault::Silent(time)) => write!(f, "line silent {time}ms"),
        }
    }
}

fn end_name(rank: usize) -> &'static str {
    if rank == 0 { "sender" } else { "receiver" }
}

/// A fault and its time after the start of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) fault: Fault,
}

/// `300ms`, `2s`, `50us`.
pub(crate) fn parse_time(text: &str) -> std::result::Result<Duration, String> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: Option<f64> = text[..end].parse().ok();
    let unit = match &text[end..] {
        "us" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        _ => None,
    };
    let seconds = number.zip(unit).map(|(number, unit)| number * unit).filter(|s| (0.0..=1e6).contains(s));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("{text:?} is no time; times are written 50us, 300ms or 2s; at most 1000000s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_they_are_printed() {
        for text in [
            "clear",
            "kill sender",
            "kill receiver",
            "stop receiver",
            "continue sender",
            "line cut",
            "line silent 250ms",
            "port softrnic0/1 down",
            "drop device=softrnic0 attempts=all",
        ] {
            assert_eq!(Fault::parse(text).expect(text).to_string(), text);
        }
        for text in ["", " ", "line", "line silent", "line silent 3", "line up"] {
            assert!(matches!(Fault::parse(text), Err(Error::Usage(_))), "{text:?}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(parse_time("2s"), Ok(Duration::from_secs(2)));
        // An hour, as scripts write it.
        assert_eq!(parse_time("3600000ms"), Ok(Duration::from_secs(3600)));
        for text in ["", "3", "ms", "-1s", "1h", "1e9s", "99999999s"] {
            assert!(parse_time(text).is_err(), "{text:?}");
        }
    }
}
