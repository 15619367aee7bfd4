#!/usr/bin/env python3
"""Adds up what cargo-nextest and the Python tests wrote of their runs: prints the tests that cannot run here with their
reasons, and the sum as last line.

    summary.py JUNIT.xml...

A test that cannot run here passes and prints a line `skipped: WHY`; it counts as skipped, not as passed. The exit status is 1
if a test failed, if a file holds no tests, or if one was skipped where the project itself is tested (CI=true).
"""

import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

SKIPPED = re.compile(r"^skipped: (.+)$", re.MULTILINE)


def reasons(case: ElementTree.Element) -> list[str]:
    """Why a test that passed did nothing; empty if it ran."""
    printed = (part.text or "" for part in case.iter() if part.tag in ("system-out", "system-err"))
    return [why.strip() for text in printed for why in SKIPPED.findall(text)]


def add_up(paths: list[str]) -> tuple[Counter[str], Counter[str]]:
    """Tests by outcome, and how many were skipped for each reason."""
    outcomes: Counter[str] = Counter()
    why: Counter[str] = Counter()
    for path in paths:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
        if not cases:
            raise ValueError(f"{path} holds no tests")
        for case in cases:
            if case.find("failure") is not None or case.find("error") is not None:
                outcomes["failed"] += 1
            elif found := reasons(case):
                outcomes["skipped"] += 1
                why[found[0]] += 1
            else:
                outcomes["passed"] += 1
    return outcomes, why


def main(paths: list[str]) -> int:
    try:
        outcomes, why = add_up(paths)
    except (OSError, ValueError, ElementTree.ParseError) as problem:
        print(f"summary.py: {problem}", file=sys.stderr)
        return 1
    for reason, count in why.most_common():
        print(f"skipped: {reason}" + (f" ({count} tests)" if count > 1 else ""))
    print(f"{outcomes['passed']} passed, {outcomes['failed']} failed, {outcomes['skipped']} skipped")
    return 1 if outcomes["failed"] or (outcomes["skipped"] and os.environ.get("CI") == "true") else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
