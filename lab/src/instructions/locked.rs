//! How often instructions of x86-64 ran that no other processor's access to memory may come between: those with a `lock` prefix, `xchg`
//! with memory, and `mfence`, which waits as these do.
//!
//! callgrind tells how often each instruction ran and where it is in its file; what it is tells the file itself.

use std::collections::BTreeMap;
use std::path::Path;

use super::callgrind::{Cost, Profile};
use super::format;
use crate::error::{Error, Result};
use crate::nccl::elf;

/// The longest instruction.
const LONGEST: u64 = 15;

impl Profile {
    /// As [`Self::read`], of the locked instructions that are in the library itself. The file has to be written with `--dump-instr=yes` too.
    ///
    /// # Errors
    /// As [`Self::read`]; or the library's file cannot be read or is for another processor.
    pub(crate) fn read_locked(text: &str, library: &str) -> Result<Self> {
        let mut ran: BTreeMap<&str, Vec<(u64, &str, i64)>> = BTreeMap::new();
        format::read(text, |line| {
            if line.call.is_none() && line.object.contains(library) {
                // Without an address: at none.
                let address = line.address.unwrap_or(u64::MAX);
                ran.entry(line.object).or_default().push((address, line.function, line.instructions));
            }
        })?;
        let mut profile = Self::default();
        for (object, instructions) in ran {
            let addresses: Vec<u64> = instructions.iter().map(|(address, ..)| *address).collect();
            if addresses.contains(&u64::MAX) {
                return Err(Error::Unreadable("no addresses: callgrind needs --dump-instr=yes".into()));
            }
            let codes = elf::x86_64_code_at(Path::new(object), &addresses, LONGEST)?;
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
    let is_prefix = |byte: &&u8| matches!(**byte, 0x66 | 0x67 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65);
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

    /// The instruction of this program at the beginning of `function`, as callgrind would tell that it ran `count` times.
    fn ran(function: &str, count: u32) -> String {
        let program = std::env::current_exe().expect("this program");
        let address = elf::local_symbol(&program, function).expect("a function with a name");
        format!("positions: instr line\nevents: Ir\nob={}\nfn={function}\n{address:#x} 0 {count}\n", program.display())
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
        let profile = Profile::read_locked(&ran("ferrite_test_locked", 7), "").expect("this program can be read");
        assert_eq!(profile.total(), 7);
        let without = "positions: line\nevents: Ir\nob=/x\nfn=y\n1 3\n";
        assert!(Profile::read_locked(without, "/x").is_err_and(|e| e.to_string().contains("--dump-instr=yes")));
    }
}
