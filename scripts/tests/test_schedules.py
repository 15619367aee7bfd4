"""scripts/schedules.py: every simulator runs every seed once, a failure is named so that it can be replayed, and a run that was stopped
goes on where it was."""

import tempfile
import unittest
from pathlib import Path

from . import fixtures

# Stands for the compiled tests: writes down what it is asked to run, and fails at seed 25 of the second simulator.
PROGRAM = """#!/bin/sh
if [ "$1" = --list ]; then
    printf 'sim::one: test\\nsim::two: test\\nsim::known_gap_of_both: test\\nother: test\\n'
    exit
fi
echo "$2 $FERRITE_SIM_SEED $FERRITE_SIM_SEEDS" >> "$0.asked"
if [ "$2" = sim::two ] && [ "$FERRITE_SIM_SEED" -le 25 ] && [ $((FERRITE_SIM_SEED + FERRITE_SIM_SEEDS)) -gt 25 ]; then
    echo 'two: replay with FERRITE_SIM_SEED=25' >&2
    exit 101
fi
"""


class Schedules(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.program, self.done = Path(folder.name, "tests"), Path(folder.name, "done")
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)

    def run_seeds(self, *words: str) -> tuple[list[str], list[str], int]:
        """The parts that were run, the lines printed, and the exit status."""
        asked = Path(f"{self.program}.asked")
        asked.unlink(missing_ok=True)
        done = fixtures.run("schedules.py", *words, "--program", self.program, "--done", self.done)
        parts = sorted(asked.read_text().splitlines()) if asked.exists() else []
        return parts, done.stdout.splitlines(), done.returncode

    def test_each_simulator_runs_each_seed_once(self) -> None:
        parts, lines, code = self.run_seeds("25", "--chunk", "10", "--first", "30")
        expected = [f"sim::{name} {part}" for name in ("one", "two") for part in ("30 10", "40 10", "50 5")]
        self.assertEqual((parts, code), (expected, 0), lines)
        self.assertEqual(lines[-1], "50 of 50 schedules, 0 failed")

    def test_a_failure_is_named_and_does_not_end_the_run(self) -> None:
        parts, lines, code = self.run_seeds("40", "--chunk", "10")
        self.assertEqual((len(parts), code), (8, 1))
        self.assertIn(f"failed: FERRITE_SIM_SEED=25 {self.program.resolve()} --exact sim::two", lines)
        self.assertEqual(lines[-1], "80 of 80 schedules, 1 failed")

    def test_what_was_right_is_not_run_again_and_what_failed_is(self) -> None:
        self.run_seeds("40", "--chunk", "10")
        parts, lines, code = self.run_seeds("40", "--chunk", "10")
        self.assertEqual((parts, code), (["sim::two 20 10"], 1), lines)
        self.assertTrue(lines[0].endswith("70 known to be right"), lines)

    def test_simulators_of_several_programs_run(self) -> None:
        other = Path(self.program.parent, "plugin")
        other.write_text(PROGRAM.replace("sim::one", "net::sim::three").replace("sim::two", "net::sim::four"))
        other.chmod(0o755)
        parts, lines, code = self.run_seeds("10", "--program", str(other))
        theirs = sorted(Path(f"{other}.asked").read_text().splitlines())
        self.assertEqual(
            (parts, theirs, code), (["sim::one 0 10", "sim::two 0 10"], ["net::sim::four 0 10", "net::sim::three 0 10"], 0), lines
        )

    def test_a_program_without_simulators_is_refused(self) -> None:
        self.program.write_text("#!/bin/sh\n")
        self.assertEqual(self.run_seeds("1")[2], 1)


if __name__ == "__main__":
    unittest.main()
