//! What a C compiler says of a header.

use std::collections::HashMap;
use std::process::Command;
use testkit::Scratch;

/// Expressions in C, and the value that each has in Rust.
#[derive(Default)]
pub(crate) struct Expressions(Vec<(String, usize)>);

impl Expressions {
    /// One more of them.
    pub(crate) fn add(&mut self, c: &str, rust: usize) {
        self.0.push((c.to_owned(), rust));
    }

    /// The size and the alignment of `c`, a type, in bytes.
    pub(crate) fn size(&mut self, c: &str, size: usize, alignment: usize) {
        self.add(&format!("sizeof({c})"), size);
        self.add(&format!("_Alignof({c})"), alignment);
    }

    /// Where `member` lies in `c`, a struct, in bytes.
    pub(crate) fn offset(&mut self, c: &str, member: &str, rust: usize) {
        self.add(&format!("offsetof({c}, {member})"), rust);
    }

    /// Fails unless they have the same values in C, after these lines.
    pub(crate) fn compare(&self, includes: &str) {
        let c = self.ask(includes);
        assert_eq!(c.len(), self.0.len(), "each is answered, and none is asked twice");
        for (expression, rust) in &self.0 {
            assert_eq!(c.get(expression), Some(rust), "{expression}");
        }
    }

    fn ask(&self, includes: &str) -> HashMap<String, usize> {
        let dir = Scratch::new();
        let line = |e: &String| format!("  printf(\"%s=%zu\\n\", \"{e}\", (size_t)({e}));\n");
        let lines: String = self.0.iter().map(|(e, _)| line(e)).collect();
        let source = format!(
            "#include <stddef.h>\n#include <stdio.h>\n{includes}\nint main(void) {{\n{lines}  return 0;\n}}\n"
        );
        std::fs::write(dir.join("layout.c"), source).expect("written");
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let compiler = cc::Build::new()
            .target(&target)
            .host(&target)
            .opt_level(0)
            .cargo_metadata(false)
            .get_compiler();
        let mut compile = compiler.to_command();
        compile
            .arg("-I")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../include"))
            .arg(dir.join("layout.c"))
            .arg("-o")
            .arg(dir.join("layout"));
        assert!(compile.status().expect("a C compiler").success());
        let output = Command::new(dir.join("layout")).output().expect("it runs");
        let text = String::from_utf8(output.stdout).expect("text");
        let answer = |line: &str| {
            line.rsplit_once('=').map(|(e, v)| (e.to_owned(), v.parse().expect("a number")))
        };
        text.lines().filter_map(answer).collect()
    }
}
