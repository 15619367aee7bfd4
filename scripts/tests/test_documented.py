"""Each command of a Python program that a page shows is understood by that program."""

import io
import re
import shlex
import subprocess
import sys
import unittest
from contextlib import redirect_stderr
from pathlib import Path
from unittest import mock

import book
import torch_suite
from nccl_net_ferrite import ab, command, ddp, hang, matrix

from .fixtures import ROOT, environment

PARSERS = {
    "ab": ab.arguments,
    "ddp": ddp.arguments,
    "hang": hang.arguments,
    "matrix": matrix.arguments,
    "site": book.arguments,
    "torch_suite": torch_suite.arguments,
}
# They name no parser of their own: --help behind the arguments ends them once these are parsed.
OTHERS = ("browser", "connections", "endurance", "fuzz", "pictures", "schedules")
# Words of the pages in whose place a number stands.
PLACES = {"SECONDS": "1", "SEEDS": "1"}
# A program of this repository, or one of the wheel's command, and its arguments.
CALL = re.compile(r"(?:scripts/(\w+)\.py|nccl[-_]net[-_]ferrite (ab|ddp|matrix))((?: [^|`>;&]*)?)$")


def pages() -> list[Path]:
    """Those of the repository, but those of results, which show what was once run."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "*.md"], capture_output=True, text=True, check=False)
    names = listed.stdout.split() or ["README.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
    return [ROOT / name for name in names if "results/" not in name and Path(name).name not in ("CHANGELOG.md", "report.md")]


def commands() -> list[tuple[str, str, list[str]]]:
    """The place, the program and its arguments; of blocks of code, and between backticks."""
    found = []
    for page in pages():
        for number, line in enumerate(page.read_text().splitlines(), 1):
            texts = [line.strip()] if line.startswith("    ") else re.findall(r"`([^`]+)`", line)
            for text in texts:
                match = CALL.search(re.sub(r"\s+#.*|\\$", "", text).strip())
                if match:
                    arguments = [PLACES.get(word, word) for word in shlex.split(match[3])]
                    found.append((f"{page.relative_to(ROOT)}:{number}", match[1] or match[2], arguments))
    return found


class Documented(unittest.TestCase):
    def parse(self, program: str, arguments: list[str]) -> str:
        """What the program says against them; "" if nothing."""
        said = io.StringIO()
        if program in OTHERS:
            done = subprocess.run(
                [sys.executable, ROOT / f"scripts/{program}.py", *arguments, "--help"],
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            return done.stderr if done.returncode else ""
        try:
            with mock.patch.object(sys, "argv", [program, *arguments]), redirect_stderr(said):
                PARSERS[program]()
        except SystemExit as end:
            return said.getvalue() if end.code else ""
        return ""

    def test_each_command_that_a_page_shows_is_understood(self) -> None:
        found = commands()
        self.assertGreater(len(found), 20)
        self.assertTrue({"ab", "matrix", "ddp", "hang", "fuzz", "schedules"} <= {program for _, program, _ in found}, found)
        for place, program, arguments in found:
            # A program alone may be spoken of without what it has to have.
            if arguments:
                self.assertEqual(self.parse(program, arguments), "", place)

    def test_what_a_program_does_not_understand_is_noticed(self) -> None:
        self.assertIn("--nowhere", self.parse("ab", ["--nowhere"]))
        self.assertIn("invalid", self.parse("fuzz", ["soon"]))

    def test_the_programs_of_the_wheel_are_those_that_are_known_here(self) -> None:
        self.assertTrue(set(command.PROGRAMS) <= set(PARSERS))
