#!/usr/bin/env python3
"""Of what scripts/coverage.sh has counted: the lines of each crate that were run, without tests. Reads LCOV's format.

scripts/coverage.py FILE
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "src": "the plugin",
    "crates/proto/src": "its protocol",
    "crates/verbs/src": "its libibverbs",
    "crates/ferrite/src": "ferrite",
    "lab/src": "the lab",
    "softrnic/src": "softrnic's library",
    "softrnic/cli/src": "softrnic's program",
    "softrnic/provider/src": "softrnic beneath drivers",
}
# A module that is compiled for tests alone, in this file or in one of its own.
TESTS = re.compile(r'^#\[cfg\((?:test|any\(test, feature = "\w+"\))\)\]\n(?:#\[.*\]\n)*(?:pub(?:\(\w+\))? )?mod (\w+)( \{|;)', re.MULTILINE)


def of_tests(root: Path) -> dict[Path, int]:
    """The files below src that have tests, and the first line of these: 1 where all of the file is for tests."""
    found: dict[Path, int] = {}
    for file in root.rglob("*.rs"):
        text = file.read_text()
        for match in TESTS.finditer(text):
            if match[2] == ";":
                folder = file.parent if file.stem in ("mod", "lib", "main") else file.with_suffix("")
                files = [folder / f"{match[1]}.rs", *(folder / match[1]).rglob("*.rs")]
                found.update({one: 1 for one in files if one.exists()})
            else:
                found.setdefault(file, text.count("\n", 0, match.start()) + 1)
    return found


def count(report: str, root: Path) -> dict[str, tuple[int, int]]:
    """Lines that were run, and all, of each part."""
    tests = {file: line for part in PARTS for file, line in of_tests(root / part).items()}
    lines: dict[tuple[Path, int], bool] = {}
    file = Path()
    for line in report.splitlines():
        key, _, value = line.partition(":")
        if key == "SF":
            file = Path(value)
        elif key == "DA":
            number, runs = (int(word) for word in value.split(",")[:2])
            if number < tests.get(file, sys.maxsize):
                lines[file, number] = lines.get((file, number), False) or runs > 0
    sums = {}
    for part in PARTS:
        ran = [has_run for (file, _), has_run in lines.items() if file.is_relative_to(root / part)]
        sums[part] = (sum(ran), len(ran))
    return sums


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/coverage.py FILE")
    sums = count(Path(sys.argv[1]).read_text(), ROOT)
    for part, (ran, all_lines) in sums.items():
        print(f"{100 * ran / max(all_lines, 1):5.1f} %  {ran} of {all_lines} lines of {PARTS[part]} ({part})")
    return 0 if all(all_lines for _, all_lines in sums.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
