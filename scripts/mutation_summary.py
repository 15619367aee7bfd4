#!/usr/bin/env python3
"""Counts what scripts/mutation.sh has found, and names changes that no test has noticed and that no page judges.

    mutation_summary.py FOLDER PAGE

FOLDER is what cargo-mutants writes, `mutants.out`. PAGE judges a change in the row of a table that names it between backticks as
cargo-mutants does, without line and column. The exit status is 1 if one is missing there.
"""

import re
import sys
from pathlib import Path


def changes(folder: Path, name: str) -> set[str]:
    file = folder / f"{name}.txt"
    return set(file.read_text().splitlines()) if file.exists() else set()


def without_place(change: str) -> str:
    """`src/proto/imm.rs:71:9: replace x with y` has the line and the column after the file's name."""
    return re.sub(r"^([^:]+):\d+:\d+: ", r"\1: ", change)


def main() -> int:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, page = Path(sys.argv[1]), Path(sys.argv[2]).read_text()
    caught = changes(folder, "caught") | changes(folder, "previously_caught")
    endless, missed = changes(folder, "timeout"), changes(folder, "missed")
    judged = {row.replace("\\|", "|") for row in re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)}
    equal = {change for change in missed if without_place(change) in judged}
    noticed = len(caught) + len(endless)
    tried = noticed + len(missed)
    share = f", {noticed / tried:.1%}" if tried else ""
    print(f"{tried} changes: {len(caught)} caught, {len(endless)} without an end, {len(missed)} missed{share}", end="; ")
    print(f"{len(changes(folder, 'unviable'))} more do not compile")
    for change in sorted(missed - equal):
        print(f"missed, and not in {sys.argv[2]}: {change}")
    if not tried:
        print("nothing has been tried")
    return 1 if missed - equal or not tried else 0


if __name__ == "__main__":
    sys.exit(main())
