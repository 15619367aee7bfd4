"""scripts/demo.sh: its exit code and last lines for each exit code of `ferrite compare`, which a program of that name stands in for."""

import shutil
import subprocess
from pathlib import Path

from . import fixtures

FERRITE = """#!/bin/sh
echo "called: $*"
exit CODE
"""


class Demo(fixtures.InFolder):
    def setUp(self) -> None:
        super().setUp()
        (self.out / "scripts").mkdir()
        (self.out / "dist/bin").mkdir(parents=True)
        shutil.copy(fixtures.ROOT / "scripts/demo.sh", self.out / "scripts")
        setup = (fixtures.ROOT / "scripts/setup.sh").read_text()
        self.write("scripts/setup.sh", setup + "\nsetup_fetch() { :; }\n")
        self.write("scripts/build.sh", "#!/bin/sh\n")

    def write(self, name: str, text: str) -> None:
        file = self.out / name
        file.write_text(text)
        file.chmod(0o755)

    def run_demo(self, code: int, *arguments: str) -> tuple[int, list[str]]:
        self.write("dist/bin/ferrite", FERRITE.replace("CODE", str(code)))
        command: list[str | Path] = [self.out / "scripts/demo.sh", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout.splitlines()

    def test_a_valid_run_with_nothing_worse_ends_with_0_and_every_other_as_the_comparison(self) -> None:
        for code, ends, result in [
            (0, 0, "PASSED"),
            (3, 0, "UNDECIDED"),
            (1, 1, "FAILED"),
            (2, 2, "none"),
            (130, 130, "none"),
            (101, 101, "none"),
        ]:
            with self.subTest(code):
                ended, lines = self.run_demo(code, "--seconds", "6")
                self.assertEqual(ended, ends)
                self.assertEqual(lines[0], "called: compare --seconds 6")
                self.assertTrue([line for line in lines[-2:] if line.startswith(f"Result: {result}. ")], lines)
                # Somebody who is not done yet reads what to do.
                self.assertEqual(lines[-1].startswith("Next: "), code != 130, lines)

    def test_help_is_no_result(self) -> None:
        self.assertEqual(self.run_demo(0, "--help"), (0, ["called: compare --help"]))
