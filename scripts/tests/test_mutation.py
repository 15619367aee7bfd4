"""mutation_plugin.py: what it tries, what it takes for noticed, and what mutation_summary.py makes of that. Without a compiler."""

import json
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import mutation_plugin
from mutation_plugin import UNIT_TESTS, Change, Copy, Found, Run, Test

from . import fixtures

UNIT = UNIT_TESTS.name
SUMMARY = fixtures.ROOT / "scripts/mutation_summary.py"


def change(name: str, file: str = "src/net/data/a.rs") -> dict[str, str]:
    return {"name": name, "file": file, "diff": "x"}


class TestMutation(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_changes_come_in_one_random_order_without_files_that_have_tests_of_their_own(self) -> None:
        listed = [change(f"src/net/data/a.rs:{i}:1: x") for i in range(50)] + [change("y", mutation_plugin.NOT[0])]
        (self.folder / "listed").write_text(json.dumps(listed))
        first, again = (mutation_plugin.changes(self.folder / "listed") for _ in range(2))
        self.assertEqual(first, again)
        names = [one.name for one in first]
        self.assertEqual(sorted(names), sorted(one["name"] for one in listed[:-1]))
        self.assertNotEqual(names, [one["name"] for one in listed[:-1]])

    def test_an_endless_test_is_ended_with_all_that_it_has_begun(self) -> None:
        # What it has begun has its output open: if that were left, this would not return.
        self.assertEqual(mutation_plugin.run(["sh", "-c", "sleep 10000 & sleep 10000"], {}, 0.3), (None, ""))
        self.assertEqual(mutation_plugin.run(["sh", "-c", "echo $A; exit 3"], {"A": "x"}, 60), (3, "x\n"))

    def outcome(self, is_built: bool, *codes: int | None) -> tuple[tuple[str, str], list[bool]]:
        """What becomes of a change with three tests that end so, and whether it was made and undone."""
        copy = Copy.__new__(Copy)
        copy.dist = copy.sources = copy.target = self.folder / "changed"
        unchanged = self.folder / "unchanged"
        tests = [*(Test(self.folder / "program", name, 0.1) for name in ("a", "b", "c")), UNIT_TESTS]
        self.distrusted: list[str] = []
        undone: list[bool] = []
        with (
            mock.patch.object(Copy, "patch", lambda _self, _change, undo: undone.append(undo)),
            mock.patch.object(Copy, "build", return_value=is_built),
            mock.patch.object(mutation_plugin, "run", side_effect=[(code, "") for code in codes]) as run,
        ):
            noticed = copy.outcome(Change("x", "f", "d"), tests, unchanged, lambda test: self.distrusted.append(test.name))
        asked = [call.args[1].get("FERRITE_DIST") for call in run.mock_calls]
        self.runs = "".join({str(copy.dist): "c", str(unchanged): "u", None: "t"}[dist] for dist in asked)
        return noticed, undone

    def test_a_change_is_noticed_by_the_first_test_that_fails_with_it_twice_and_not_without_it(self) -> None:
        both = [False, True]
        self.assertEqual(self.outcome(True, 0, 0, 0, 0, 0), (("missed", ""), both))
        self.assertEqual(self.runs, "ccctt", "with the change; then the unit tests are built, and run")
        self.assertEqual(self.outcome(True, 0, 101, 0, 101), (("caught", "b"), both))
        self.assertEqual(self.runs, "ccuc", "and once without it")
        self.assertEqual(self.outcome(True, None, 0, None), (("timeout", "a"), both))
        self.assertEqual(self.outcome(True, 101, 0, 0, 101, 0, 101), (("caught", "b"), both), "a has failed once")
        self.assertEqual(self.distrusted, [])
        self.assertEqual(self.outcome(True, 101, 101, 101, None, 0, 0, 0), (("missed", ""), both))
        self.assertEqual(self.distrusted, ["a", "b"], "they fail without the change as well")
        self.assertEqual(self.outcome(False), (("unviable", ""), both))

    def test_unit_tests_have_noticed_if_they_can_be_built_and_fail_twice(self) -> None:
        self.assertEqual(self.outcome(True, 0, 0, 0, 0, 101, 101)[0], ("caught", UNIT))
        self.assertEqual(self.outcome(True, 0, 0, 0, 0, 101, None)[0], ("timeout", UNIT))
        self.assertEqual(self.outcome(True, 0, 0, 0, 0, 101, 0)[0], ("missed", ""))
        self.assertEqual(self.outcome(True, 0, 0, 0, 101)[0], ("missed", ""), "they do not compile")

    def test_what_a_test_has_noticed_that_fails_without_a_change_is_tried_anew(self) -> None:
        outcomes = [("caught", "b"), ("missed", ""), ("caught", "c"), ("timeout", "b")]
        tests = [Test(self.folder, name, seconds) for name, seconds in (("a", 1.0), ("b", 2.0), ("c", 3.0))]
        run = Run(self.folder, [Change(f"{number}:1: x", "f", "d") for number in range(4)], tests, 0)
        run.found.all |= {f"{number}:1: x": one for number, one in enumerate(outcomes)}
        run.left.queue.clear()
        self.assertEqual([test.name for test in run.next_test("2")], ["c", "b", UNIT, "a"], "c is for that file")
        order = run.next_test("f")
        self.assertEqual(next(order).name, "b", "it has noticed most for its time")
        run.distrust(tests[1])
        run.distrust(tests[0])
        self.assertEqual([test.name for test in order], ["c", UNIT])
        self.assertEqual([run.left.get_nowait().name for _ in range(2)], ["0:1: x", "3:1: x"])
        left = [Change(f"{number}:1: x", "f", "d") for number in range(1, 4)]
        again = Run(self.folder, left, tests, 0)
        self.assertEqual(again.found.all, {"1:1: x": ("missed", ""), "2:1: x": ("caught", "c")}, "what earlier runs have found")
        self.assertEqual(again.left.get_nowait().name, "3:1: x")
        again = Run(self.folder, left, tests, 0, {"c"})
        self.assertEqual(again.found.all, {"1:1: x": ("missed", "")}, "c fails without a change now")
        again = Run(self.folder, left, tests, 0, missed=True)
        self.assertEqual(again.found.all, {"2:1: x": ("caught", "c")}, "what was missed is tried again")
        self.assertEqual(again.left.qsize(), 2)

    def test_tests_are_asked_that_pass_without_a_change_and_in_time(self) -> None:
        program = self.folder / "program"
        ends: dict[str, tuple[int | None, str]] = {
            "passes": (0, ""),
            "fails": (101, ""),
            "skips": (0, "skipped: a GPU"),
            "waits": (None, ""),
        }
        program.write_text(f"#!/bin/sh\nfor name in {' '.join(ends)}; do echo $name: test; done\n")
        program.chmod(0o755)
        with mock.patch.object(mutation_plugin, "run", lambda command, *_: ends[command[2]]):
            tests, failing = mutation_plugin.measured([program], self.folder, 4, 2)
        self.assertEqual(([test.name for test in tests], failing), (["passes"], {"fails"}))

    def test_a_test_that_is_found_to_fail_without_a_change_meanwhile_has_not_noticed(self) -> None:
        test = Test(self.folder, "a", 1.0)
        run = Run(self.folder, [Change("x", "f", "d")], [test], time.monotonic() + 60)
        outcomes = iter([("caught", "a"), ("missed", "")])

        def outcome(*_: object) -> tuple[str, str]:
            run.distrust(test)
            return next(outcomes)

        with mock.patch.object(mutation_plugin, "Copy") as copy:
            copy.return_value.outcome = outcome
            run.work(0)
        self.assertEqual(run.found.all, {"x": ("missed", "")})

    def test_what_was_found_is_counted(self) -> None:
        outcomes = [("f.rs:1:2: a", "caught"), ("f.rs:2:2: b", "missed"), ("f.rs:3:2: c", "missed"), ("f.rs:4:2: d", "unviable")]
        found = Found(self.folder / "mutants.out", set())
        found.all = {name: (outcome, "t") for name, outcome in outcomes}
        found.write()
        page = self.folder / "page.md"
        page.write_text("| `f.rs: b` | why |\n")
        command = [sys.executable, str(SUMMARY), str(self.folder / "mutants.out"), str(page)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("3 changes: 1 caught, 0 without an end, 2 missed, 33.3%; 1 more do not compile", done.stdout)
        self.assertIn(f"missed, and not in {page}: f.rs:3:2: c\n", done.stdout)
        self.assertNotIn("f.rs:2:2: b\n", done.stdout)


if __name__ == "__main__":
    unittest.main()
