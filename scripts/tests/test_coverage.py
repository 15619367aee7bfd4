"""Tests of scripts/coverage.py: which lines count, and which are those of tests."""

import importlib.util
from pathlib import Path
from types import ModuleType

from .fixtures import SCRIPTS, InFolder, run

FILE = """pub fn used() {}
pub fn unused() {}

#[cfg(test)]
mod tests {
    fn used_too() {}
}
"""


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("coverage_of_tests", SCRIPTS / "coverage.py")
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class Coverage(InFolder):
    def write(self, name: str, text: str) -> Path:
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def test_lines_of_tests_do_not_count(self) -> None:
        first = self.write("src/first.rs", FILE)
        self.write("src/lib.rs", 'mod first;\n#[cfg(any(test, feature = "simulator"))]\n#[allow(dead_code)]\npub(crate) mod inputs;\n')
        inputs = self.write("src/inputs/many.rs", "pub fn many() {}\n")
        main = self.write("softrnic/cli/src/main.rs", "fn main() {}\n")
        # The same line of two programs has run if it has in one.
        runs = [(first, "DA:1,0\nDA:2,0\nDA:6,9"), (first, "DA:1,3"), (inputs, "DA:1,1"), (main, "DA:1,0")]
        report = "".join(f"SF:{file}\n{lines}\nend_of_record\n" for file, lines in runs)
        counted = module().count(report, self.out)
        self.assertEqual(
            counted,
            {
                "src": (1, 2),
                "crates/proto/src": (0, 0),
                "crates/verbs/src": (0, 0),
                "crates/ferrite/src": (0, 0),
                "lab/src": (0, 0),
                "softrnic/src": (0, 0),
                "softrnic/cli/src": (0, 1),
                "softrnic/provider/src": (0, 0),
            },
        )

    def test_a_report_without_a_part_is_no_result(self) -> None:
        done = run("coverage.py", self.write("none.lcov", ""))
        self.assertEqual(done.returncode, 1)
        self.assertIn("0 of 0 lines of the plugin", done.stdout)
