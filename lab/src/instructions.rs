//! CPU instructions of a transport, out of callgrind's output of `ferrite solo`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Error, Result};
use crate::nccl::shared_object;

// The costs of one library in a file that valgrind's callgrind wrote.
//
// A library's cost is that of its own instructions, with all that its calls into other libraries
// cost (memcpy, malloc, ...). Libraries of the device are left out. It is read from the file itself:
// callgrind_annotate drops what was inlined from another source file. The file has to be written
// with `--compress-strings=no --compress-pos=no`.

/// Libraries whose cost does not count for the caller: libibverbs, its provider, and softrnic's
/// library under a provider.
const DEVICE_LIBRARIES: [&str; 3] = ["libibverbs", "libmlx5", "libsoftrnic-provider"];

/// What one function costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Instructions of its own and of its calls into other libraries.
    pub(crate) instructions: i64,
    /// How often it was called.
    pub(crate) calls: i64,
}

/// The costs of a library by function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Profile(pub(crate) BTreeMap<String, Cost>);

impl Profile {
    /// Reads `text`; a library is one whose path contains `library`.
    ///
    /// # Errors
    /// [`crate::error::Error::Unreadable`] if the text is no output of callgrind's, or is
    /// compressed.
    pub(crate) fn read(text: &str, library: &str) -> Result<Self> {
        let mut profile = Self::default();
        read(text, |line| profile.add(line, library))?;
        Ok(profile)
    }

    fn add(&mut self, line: &CostLine<'_>, library: &str) {
        let is_own = |object: &str| object.contains(library);
        let counts = match line.call {
            None => true,
            Some(call) if is_own(call.object) => {
                self.0.entry(call.function.into()).or_default().calls += call.count;
                false
            }
            Some(call) => !DEVICE_LIBRARIES.iter().any(|name| call.object.contains(name)),
        };
        if counts && is_own(line.object) {
            self.0.entry(line.function.into()).or_default().instructions += line.instructions;
        }
    }

    /// All instructions of the library.
    pub(crate) fn total(&self) -> i64 {
        self.0.values().map(|cost| cost.instructions).sum()
    }

    /// What this profile has more than `other`, by function; what it has less is negative.
    pub(crate) fn minus(mut self, other: &Self) -> Self {
        for (name, cost) in &other.0 {
            let more = self.0.entry(name.clone()).or_default();
            more.instructions -= cost.instructions;
            more.calls -= cost.calls;
        }
        self
    }
}

/// A line that has a cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CostLine<'f> {
    /// The object and function that the cost belongs to.
    object: &'f str,
    function: &'f str,
    /// What is called, if the cost is the inclusive one of calls.
    call: Option<Call<'f>>,
    /// Where in the object the instruction is, if the file tells it.
    address: Option<u64>,
    instructions: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Call<'f> {
    object: &'f str,
    function: &'f str,
    count: i64,
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
fn read<'f>(text: &'f str, mut each: impl FnMut(&CostLine<'f>)) -> Result<()> {
    if !text.lines().any(|line| line.starts_with("events:")) {
        return Err(Error::Unreadable(
            "no `events:` line: this is no output of callgrind's".into(),
        ));
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
            Some(("calls", count)) => {
                self.calls = Some(count.split_ascii_whitespace().next()?.parse().ok()?)
            }
            _ if line.starts_with(['+', '-', '*']) => return None,
            _ if line.starts_with(|first: char| first.is_ascii_digit()) => {
                return self.cost(line).map(Some);
            }
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

// How often instructions of x86-64 ran that no other processor's access to memory may come between:
// those with a `lock` prefix, `xchg` with memory, and `mfence`, which waits as these do.
//
// callgrind tells how often each instruction ran and where it is in its file; what it is tells the
// file itself.

/// The longest instruction.
const LONGEST: u64 = 15;

impl Profile {
    /// As [`Self::read`], of the locked instructions that are in the library itself. The file has
    /// to be written with `--dump-instr=yes` too.
    ///
    /// # Errors
    /// As [`Self::read`]; or the library's file cannot be read or is for another processor.
    pub(crate) fn read_locked(text: &str, library: &str) -> Result<Self> {
        let mut ran: BTreeMap<&str, Vec<(u64, &str, i64)>> = BTreeMap::new();
        read(text, |line| {
            if line.call.is_none() && line.object.contains(library) {
                // Without an address: at none.
                let address = line.address.unwrap_or(u64::MAX);
                ran.entry(line.object)
                    .or_default()
                    .push((address, line.function, line.instructions));
            }
        })?;
        let mut profile = Self::default();
        for (object, instructions) in ran {
            let addresses: Vec<u64> = instructions.iter().map(|(address, ..)| *address).collect();
            if addresses.contains(&u64::MAX) {
                return Err(Error::Unreadable(
                    "no addresses: callgrind needs --dump-instr=yes".into(),
                ));
            }
            let codes = shared_object::x86_64_code_at(Path::new(object), &addresses, LONGEST)?;
            for ((_, function, count), code) in instructions.into_iter().zip(codes) {
                let cost = profile.0.entry(function.into()).or_insert_with(Cost::default);
                cost.instructions += if is_locked(&code) { count } else { 0 };
            }
        }
        Ok(profile)
    }
}

/// Whether the instruction that `code` begins with is a locked one.
fn is_locked(code: &[u8]) -> bool {
    let is_prefix = |byte: &&u8| {
        matches!(**byte, 0x66 | 0x67 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65)
    };
    let code = &code[code.iter().take_while(is_prefix).count()..];
    let code = match code {
        // REX.
        [0x40..=0x4f, code @ ..] => code,
        code => code,
    };
    match code {
        [0xf0, ..] | [0x0f, 0xae, 0xf0, ..] => true,
        // xchg; two registers if the highest bits are set.
        [0x86 | 0x87, operands, ..] => *operands < 0xc0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The library `b` with two functions; `isend` calls `post` in the same library, memcpy in
    /// libc, and libibverbs.
    const SAMPLE: &str = "\
# callgrind format
version: 1
positions: line
events: Ir

ob=/x/ferrite
fl=main.rs
fn=main
1 500
cob=/x/libb.so
cfn=isend
calls=3 10
2 900

ob=/x/libb.so
fl=send.rs
fn=isend
10 60
11 30
fi=inlined.rs
7 9
fe=send.rs
cfn=post
calls=3 20
12 120
cob=/lib/libc.so.6
cfi=memcpy.c
cfn=memcpy
calls=3 1
13 45
cob=/lib/libibverbs.so.1
cfn=ibv_post_send
calls=3 1
14 10000

fn=post
20 120
";

    #[test]
    fn own_instructions_and_calls_into_other_libraries_are_counted_by_function() {
        let profile = Profile::read(SAMPLE, "/libb.so").expect("a file of callgrind's");
        let isend = Cost { instructions: 60 + 30 + 9 + 45, calls: 3 };
        let post = Cost { instructions: 120, calls: 3 };
        assert_eq!(profile.0, BTreeMap::from([("isend".into(), isend), ("post".into(), post)]));
        assert_eq!(profile.total(), 264);
        for device in ["libmlx5.so.1.24", "libsoftrnic-provider.so"] {
            let other = SAMPLE.replace("libibverbs.so.1", device);
            assert_eq!(Profile::read(&other, "/libb.so").ok(), Some(profile.clone()), "{device}");
        }
        assert_eq!(Profile::read(SAMPLE, "/libz.so").map(|profile| profile.total()).ok(), Some(0));
    }

    #[test]
    fn a_difference_has_what_one_run_has_more() {
        let more = Profile::read(
            &SAMPLE.replace("20 120", "20 200").replace("calls=3 20", "calls=5 20"),
            "/libb.so",
        );
        let difference =
            more.expect("a file").minus(&Profile::read(SAMPLE, "/libb.so").expect("a file"));
        assert_eq!(difference.0["post"], Cost { instructions: 80, calls: 2 });
        assert_eq!(difference.total(), 80);
    }

    #[test]
    fn addresses_are_read_where_the_file_has_them() {
        let text = "positions: instr line\nevents: Ir\nob=/x/b.so\nfn=post\n0x1a2b 20 3\ncfn=wait\ncalls=2 0x40 7\n0x1a2f 21 90\n";
        let mut lines = Vec::new();
        read(text, |line| lines.push(*line)).expect("a file of callgrind's");
        let own = CostLine {
            object: "/x/b.so",
            function: "post",
            call: None,
            address: Some(0x1a2b),
            instructions: 3,
        };
        let call = Some(Call { object: "/x/b.so", function: "wait", count: 2 });
        assert_eq!(lines, [own, CostLine { call, address: Some(0x1a2f), instructions: 90, ..own }]);
    }

    #[test]
    fn other_and_compressed_files_are_refused() {
        assert!(read("hello", |_| {}).is_err());
        let compressed = "events: Ir\nob=x\nfn=y\n10 3\n+1 30\n";
        assert!(
            read(compressed, |_| {})
                .is_err_and(|problem| problem.to_string().contains("--compress-pos=no"))
        );
    }

    #[test]
    fn locked_instructions_are_told_from_others() {
        let locked: [&[u8]; 6] = [
            &[0xf0, 0x48, 0x0f, 0xb1, 0x0f],       // lock cmpxchg %rcx,(%rdi)
            &[0x66, 0xf0, 0x0f, 0xc1, 0x07],       // lock xadd %ax,(%rdi)
            &[0x87, 0x07],                         // xchg %eax,(%rdi)
            &[0x48, 0x87, 0x47, 0x08],             // xchg %rax,8(%rdi)
            &[0x64, 0x86, 0x04, 0x25, 0, 0, 0, 0], // xchg %al,%fs:0
            &[0x0f, 0xae, 0xf0],                   // mfence
        ];
        let plain: [&[u8]; 6] = [
            &[0x48, 0x87, 0xc1], // xchg %rax,%rcx
            &[0x66, 0x90],       // xchg %ax,%ax
            &[0x48, 0x89, 0x07], // mov %rax,(%rdi)
            &[0x0f, 0xae, 0xe8], // lfence
            &[0x0f, 0xb1, 0x0f], // cmpxchg %ecx,(%rdi), without the prefix
            &[],
        ];
        assert_eq!(locked.map(is_locked), [true; 6]);
        assert_eq!(plain.map(is_locked), [false; 6]);
    }

    /// The instruction of this program at the beginning of `function`, as callgrind would tell that
    /// it ran `count` times.
    fn ran(function: &str, count: u32) -> String {
        let program = std::env::current_exe().expect("this program");
        let address =
            shared_object::local_symbol(&program, function).expect("a function with a name");
        format!(
            "positions: instr line\nevents: Ir\nob={}\nfn={function}\n{address:#x} 0 {count}\n",
            program.display()
        )
    }

    #[cfg(target_arch = "x86_64")]
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    extern "C" fn ferrite_test_locked() {
        core::arch::naked_asm!("lock inc dword ptr [rsp]", "ret");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn what_ran_is_looked_up_in_the_file() {
        std::hint::black_box(ferrite_test_locked as extern "C" fn());
        let profile = Profile::read_locked(&ran("ferrite_test_locked", 7), "")
            .expect("this program can be read");
        assert_eq!(profile.total(), 7);
        let without = "positions: line\nevents: Ir\nob=/x\nfn=y\n1 3\n";
        assert!(
            Profile::read_locked(without, "/x")
                .is_err_and(|e| e.to_string().contains("--dump-instr=yes"))
        );
    }
}
