//! What is seen of a process from outside.

use std::fs;

/// What the kernel says of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It has ended.
    Ended,
    /// It is stopped: by a signal, by a debugger, or in a frozen cgroup.
    Stopped,
    /// Its main thread waits in the kernel and cannot be interrupted; where, if the kernel says so.
    InKernel(String),
    /// It runs, or may run.
    Running,
}

impl State {
    /// Of process `pid`.
    pub fn of(pid: u32) -> Self {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return Self::Ended };
        match letter(&stat) {
            Some('T' | 't') => Self::Stopped,
            Some('Z' | 'X') => Self::Ended,
            Some('D') => Self::InKernel(fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default()),
            _ if is_frozen(pid) => Self::Stopped,
            _ => Self::Running,
        }
    }

    /// For people, with what to do.
    pub fn text(&self) -> String {
        match self {
            Self::Ended => "it has ended".into(),
            Self::Stopped => "it is stopped: by SIGSTOP (kill -CONT), by a debugger, or in a frozen cgroup".into(),
            Self::InKernel(place) if !place.is_empty() => {
                format!(
                    "it waits in the kernel, in {place}, and cannot be interrupted: storage or a driver does not answer"
                )
            }
            Self::InKernel(_) => {
                "it waits in the kernel and cannot be interrupted: storage or a driver does not answer".into()
            }
            Self::Running => {
                "it runs, but cannot be asked: it has no connection of Ferrite, reports are off (FERRITE_HANG_SECONDS=0), \
                 it gets no CPU, or it is in another container"
                    .into()
            }
        }
    }
}

/// The state in a line of `/proc/PID/stat`. The name before it may hold any characters.
fn letter(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

fn is_frozen(pid: u32) -> bool {
    let Ok(groups) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else { return false };
    let Some(group) = groups.lines().find_map(|line| line.strip_prefix("0::")) else { return false };
    fs::read_to_string(format!("/sys/fs/cgroup{group}/cgroup.freeze")).is_ok_and(|frozen| frozen.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_comes_after_a_name_with_any_characters() {
        assert_eq!(letter("7 (a) T (b) S) D 1 2"), Some('D'));
        assert_eq!(letter("nothing"), None);
        assert_eq!(State::of(std::process::id()), State::Running);
        assert_eq!(State::of(u32::MAX), State::Ended);
    }
}
