"""scripts/summary.py: tests that passed, failed and could not run are told apart, in what cargo-nextest writes."""

import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "scripts", "summary.py")

PASSED = '<testcase name="a"><system-out>test a ... ok</system-out><system-err></system-err></testcase>'
SKIPPED = '<testcase name="b"><system-err>&#10;skipped: a GPU&#10;skipped: a GPU&#10;</system-err></testcase>'
FAILED = '<testcase name="c"><failure type="test failure"/><system-err>skipped: a NIC</system-err></testcase>'


def summary(*files, **environment):
    """What it prints of these files' test cases, and its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, cases in enumerate(files):
            paths.append(os.path.join(folder, f"{number}.xml"))
            with open(paths[-1], "w", encoding="utf-8") as file:
                file.write(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
        env = {name: value for name, value in os.environ.items() if name != "CI"} | environment
        done = subprocess.run([sys.executable, SCRIPT, *paths], capture_output=True, text=True, env=env)
    return done.stdout.splitlines(), done.returncode


class Sum(unittest.TestCase):
    def test_passed(self):
        self.assertEqual(summary([PASSED], [PASSED, PASSED]), (["3 passed, 0 failed, 0 skipped"], 0))

    def test_one_that_cannot_run_is_not_passed(self):
        self.assertEqual(summary([PASSED, SKIPPED]), (["skipped: a GPU", "1 passed, 0 failed, 1 skipped"], 0))

    def test_none_may_be_skipped_where_the_project_is_tested(self):
        self.assertEqual(summary([PASSED, SKIPPED], CI="true")[1], 1)

    def test_one_that_failed_is_nothing_else(self):
        self.assertEqual(summary([PASSED], [FAILED]), (["1 passed, 1 failed, 0 skipped"], 1))

    def test_no_tests_are_a_failure(self):
        self.assertEqual(summary([PASSED], [])[1], 1)
        self.assertEqual(summary([])[1], 1)


if __name__ == "__main__":
    unittest.main()
