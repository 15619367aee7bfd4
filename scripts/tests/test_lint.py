"""Types, lints and layout of all Python files here; scripts/nightly.sh looks at shell scripts. Skipped without the tools."""

import importlib.util
import re
import subprocess
import sys
import unittest

from . import fixtures


class Lint(unittest.TestCase):
    def check(self, tool: str, *arguments: str) -> None:
        if not importlib.util.find_spec(tool):
            self.skipTest(tool)
        command = [sys.executable, "-m", tool, *arguments]
        done = subprocess.run(command, cwd=fixtures.SCRIPTS, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_mypy(self) -> None:
        self.check("mypy", "--cache-dir", str(fixtures.CACHE / "mypy"), ".")

    def test_ruff(self) -> None:
        self.check("ruff", "check", "--no-cache", "--quiet", ".")

    def test_ruff_format(self) -> None:
        self.check("ruff", "format", "--no-cache", "--check", "--diff", ".")

    def test_pre_commit_takes_the_same_ruff(self) -> None:
        required = re.findall(r"^ruff==.+$", (fixtures.SCRIPTS / "requirements.txt").read_text(), re.MULTILINE)
        taken = re.findall(r"ruff==[^\]]+", (fixtures.ROOT / ".pre-commit-config.yaml").read_text())
        self.assertEqual(taken, required * 2)
