//! The lines of a file that valgrind's callgrind wrote with `--compress-strings=no --compress-pos=no`, with or without `--dump-instr=yes`.

use crate::error::{Error, Result};

/// A line that has a cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CostLine<'f> {
    /// The object and function that the cost belongs to.
    pub(super) object: &'f str,
    pub(super) function: &'f str,
    /// What is called, if the cost is the inclusive one of calls.
    pub(super) call: Option<Call<'f>>,
    /// Where in the object the instruction is, if the file tells it.
    pub(super) address: Option<u64>,
    pub(super) instructions: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call<'f> {
    pub(super) object: &'f str,
    pub(super) function: &'f str,
    pub(super) count: i64,
}

/// Where in the file the reader is.
#[derive(Default)]
struct Place<'f> {
    /// The object (`ob=`) and function (`fn=`) that cost lines belong to.
    object: &'f str,
    function: &'f str,
    /// The object (`cob=`, else the same) and function (`cfn=`) of the next call.
    callee_object: Option<&'f str>,
    callee: &'f str,
    /// The number of calls (`calls=`), if the next cost line is their inclusive cost.
    calls: Option<i64>,
    /// Whether cost lines begin with an address (`positions:`).
    has_addresses: bool,
}

/// Passes the lines of `text` that have a cost to `each`.
///
/// # Errors
/// [`Error::Unreadable`] if the text is no output of callgrind's, or is compressed.
pub(super) fn read<'f>(text: &'f str, mut each: impl FnMut(&CostLine<'f>)) -> Result<()> {
    if !text.lines().any(|line| line.starts_with("events:")) {
        return Err(Error::Unreadable("no `events:` line: this is no output of callgrind's".into()));
    }
    let mut place = Place::default();
    for (number, line) in text.lines().enumerate() {
        let cost = place.read_line(line).ok_or_else(|| {
            Error::Unreadable(format!(
                "line {} is not understood: {line:?} (callgrind needs --compress-strings=no --compress-pos=no)",
                number + 1
            ))
        })?;
        if let Some(cost) = cost {
            each(&cost);
        }
    }
    Ok(())
}

impl<'f> Place<'f> {
    /// What the line costs, if it is a cost line; outside `None` if the line is not understood.
    fn read_line(&mut self, line: &'f str) -> Option<Option<CostLine<'f>>> {
        match line.split_once('=') {
            Some(("ob", object)) => self.object = object,
            Some(("fn", function)) => self.function = function,
            Some(("cob", object)) => self.callee_object = Some(object),
            Some(("cfn", function)) => self.callee = function,
            Some(("calls", count)) => self.calls = Some(count.split_ascii_whitespace().next()?.parse().ok()?),
            _ if line.starts_with(['+', '-', '*']) => return None,
            _ if line.starts_with(|first: char| first.is_ascii_digit()) => return self.cost(line).map(Some),
            _ if line.starts_with("positions:") => self.has_addresses = line.contains("instr"),
            _ => {}
        }
        Some(None)
    }

    fn cost(&mut self, line: &str) -> Option<CostLine<'f>> {
        let mut numbers = line.split_ascii_whitespace();
        let address = match self.has_addresses {
            true => Some(u64::from_str_radix(numbers.next()?.strip_prefix("0x")?, 16).ok()?),
            false => None,
        };
        let instructions = numbers.nth(1)?.parse().ok()?;
        let Self { object, function, callee: called, .. } = *self;
        let call = self.calls.take().map(|count| {
            let object = self.callee_object.take().unwrap_or(object);
            Call { object, function: called, count }
        });
        Some(CostLine { object, function, call, address, instructions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_where_the_file_has_them() {
        let text = "positions: instr line\nevents: Ir\nob=/x/b.so\nfn=post\n0x1a2b 20 3\ncfn=wait\ncalls=2 0x40 7\n0x1a2f 21 90\n";
        let mut lines = Vec::new();
        read(text, |line| lines.push(*line)).expect("a file of callgrind's");
        let own = CostLine { object: "/x/b.so", function: "post", call: None, address: Some(0x1a2b), instructions: 3 };
        let call = Some(Call { object: "/x/b.so", function: "wait", count: 2 });
        assert_eq!(lines, [own, CostLine { call, address: Some(0x1a2f), instructions: 90, ..own }]);
    }

    #[test]
    fn other_and_compressed_files_are_refused() {
        assert!(read("hello", |_| {}).is_err());
        let compressed = "events: Ir\nob=x\nfn=y\n10 3\n+1 30\n";
        assert!(read(compressed, |_| {}).is_err_and(|problem| problem.to_string().contains("--compress-pos=no")));
    }
}
