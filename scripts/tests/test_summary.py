"""scripts/summary.py: tests that passed, failed and could not run are told apart, in the files that cargo-nextest and the Python
tests write."""

import tempfile
import unittest
from pathlib import Path

from . import fixtures

PASSED = '<testcase name="a"><system-out>test a ... ok</system-out><system-err></system-err></testcase>'
SKIPPED = '<testcase name="b"><system-err>&#10;skipped: a GPU&#10;skipped: a GPU&#10;</system-err></testcase>'
FAILED = '<testcase name="c"><failure type="test failure"/><system-err>skipped: a NIC</system-err></testcase>'


def summary(*files: list[str], ci: str = "") -> tuple[list[str], int]:
    """What it prints of these files' test cases, and its exit status; `ci` is the variable CI."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, cases in enumerate(files):
            paths.append(Path(folder, f"{number}.xml"))
            paths[-1].write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
        done = fixtures.run("summary.py", *paths, CI=ci)
    return done.stdout.splitlines(), done.returncode


class Sum(unittest.TestCase):
    def test_passed(self) -> None:
        self.assertEqual(summary([PASSED], [PASSED, PASSED]), (["3 passed, 0 failed, 0 skipped"], 0))

    def test_one_that_cannot_run_is_not_passed(self) -> None:
        self.assertEqual(summary([PASSED, SKIPPED]), (["skipped: a GPU", "1 passed, 0 failed, 1 skipped"], 0))

    def test_none_may_be_skipped_where_the_project_is_tested(self) -> None:
        self.assertEqual(summary([PASSED, SKIPPED], ci="true")[1], 1)

    def test_one_that_failed_is_nothing_else(self) -> None:
        self.assertEqual(summary([PASSED], [FAILED]), (["1 passed, 1 failed, 0 skipped"], 1))

    def test_no_tests_are_a_failure(self) -> None:
        self.assertEqual(summary([PASSED], [])[1], 1)
        self.assertEqual(summary([])[1], 1)
