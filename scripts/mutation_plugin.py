#!/usr/bin/env python3
"""Changes set-up and data path of the plugin in every way that cargo-mutants knows, one at a time, and sees whether the tests notice.

    mutation_plugin.py [--changes FILE] [--jobs N] [--seconds S] [--programs FILE FILE] [--found FOLDER]

    scripts/mutation_plugin.py           # some hours of processor time; goes on where the last run was ended

It takes dist/ (scripts/build.sh) and cargo-mutants; with --changes, a file has what `cargo mutants --list --json --diff` prints. Each
change is made in a copy of the sources, of which the library alone is built. Then the programs `plugin` and `recovery` run their tests
until one fails: first those that have noticed most changes for the time that they take, then the quickest. Where none does, the library's
unit tests are built and run. Before that all tests of the programs run once without a change: those that fail, are skipped or take longer
than LONGEST_S are left out. Copies without a change are tried among the others: where one fails, a test is red for another reason, the
exit status is 1, and the figure is worth less. The order is drawn at random, so that the changes of a run that is ended are a sample.
What was found lies in FOLDER (target/mutation-plugin); mutation_summary.py counts it.
"""

import argparse
import filecmp
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue

from schedules import positive

ROOT = Path(__file__).resolve().parent.parent
# What is changed. exclusive_cell.rs has tests of its own, with a model checker.
FILES = ("src/net/setup/**", "src/net/data/**")
NOT = ("src/net/data/exclusive_cell.rs", "src/net/data/exclusive_cell_tests.rs")
PROGRAMS = ("plugin", "recovery")
# Of an unchanged plugin.
LONGEST_S = 4
# How much longer a test may take with a change before it is taken for endless: at least LIMIT_S seconds.
LIMIT_S, LIMIT_TIMES = 20, 8
# One copy without a change among so many.
CONTROL_EVERY = 25
# As quick to build as can be, and as the plugin is otherwise: without checks for overflow.
PACKAGE = "profile.release.package.nccl-net-ferrite"
PROFILE = ("--config", f"{PACKAGE}.codegen-units=64", "--config", f"{PACKAGE}.opt-level=0")
OUTCOMES = ("caught", "missed", "timeout", "unviable")
UNIT_TESTS = "the unit tests of the library"


@dataclass(frozen=True)
class Test:
    """A test of a program, and how long it takes without a change."""

    program: Path
    name: str
    seconds: float


@dataclass(frozen=True)
class Change:
    """One change as cargo-mutants names it, or none."""

    name: str
    file: str
    diff: str


def changes(given: Path | None) -> list[Change]:
    if given:
        text = given.read_text()
    else:
        files = [word for pattern in FILES for word in ("--file", pattern)]
        command = ["cargo", "mutants", "--list", "--json", "--diff", *files]
        text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = [Change(one["name"], one["file"], one["diff"]) for one in json.loads(text) if one["file"] not in NOT]
    random.Random(1).shuffle(found)
    return found


def programs() -> list[Path]:
    """The compiled tests of the plugin."""
    command = ["cargo", "test", "--locked", "-p", "nccl-net-ferrite", "--no-run"]
    command += [word for name in PROGRAMS for word in ("--test", name)]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    found = re.findall(r"Executable .*\((.+)\)", done.stderr)
    if done.returncode or len(found) != len(PROGRAMS):
        sys.exit(f"mutation_plugin.py: {' '.join(command)} has failed:\n{done.stderr}")
    return [ROOT / one for one in found]


def run(command: list[str], settings: dict[str, str], limit: float, folder: Path = ROOT) -> tuple[int | None, str]:
    """The exit status, None after `limit` seconds, and what was printed. What a test has begun ends with it."""
    child = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = child.communicate(timeout=limit)
        return child.returncode, said.decode(errors="replace")
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.communicate()


def measured(built: list[Path], dist: Path, jobs: int) -> list[Test]:
    """The tests that pass without a change in time, quickest first."""

    def measure(program: Path, name: str) -> Test | None:
        begun = time.monotonic()
        code, said = run([str(program), "--exact", name, "--nocapture"], {"FERRITE_DIST": str(dist)}, 60)
        seconds = time.monotonic() - begun
        if code == 0 and seconds <= LONGEST_S and "skipped: " not in said:
            return Test(program, name, seconds)
        print(f"left out: {name}: {'skipped' if 'skipped: ' in said else f'exit status {code}'}, {seconds:.1f} s", flush=True)
        return None

    named = []
    for program in built:
        listed = subprocess.run([str(program), "--list"], check=True, capture_output=True, text=True).stdout
        named += [(program, line.removesuffix(": test")) for line in listed.splitlines() if line.endswith(": test")]
    with ThreadPoolExecutor(jobs) as pool:
        tests = [test for test in pool.map(lambda one: measure(*one), named) if test]
    return sorted(tests, key=lambda test: test.seconds)


def copy_if_other(source: str, copy: str) -> None:
    """So that cargo builds again what is other than it was in an earlier run, and nothing else."""
    if not Path(copy).exists() or not filecmp.cmp(source, copy, shallow=False):
        shutil.copy(source, copy)


class Copy:
    """Sources of its own, what is built from them, and a dist/ with that."""

    def __init__(self, folder: Path) -> None:
        self.sources, self.dist, self.target = folder / "sources", folder / "dist", folder / "target"
        without = shutil.ignore_patterns("target", "dist", "benchmarks", "packages", ".*")
        shutil.copytree(ROOT, self.sources, ignore=without, copy_function=copy_if_other, dirs_exist_ok=True)
        shutil.rmtree(self.dist, ignore_errors=True)
        (self.dist / "lib").mkdir(parents=True)
        for entry in (ROOT / "dist").iterdir():
            if entry.name != "lib":
                (self.dist / entry.name).symlink_to(entry)

    def patch(self, change: Change, *, undo: bool) -> None:
        if change.diff:
            command = ["patch", "--quiet", "--no-backup-if-mismatch", *(["--reverse"] if undo else []), change.file]
            subprocess.run(command, cwd=self.sources, input=change.diff, text=True, check=True)

    def cargo(self, *arguments: str) -> tuple[int | None, str]:
        """Of the library alone; the exit status, None if it did not end, and what was printed."""
        command = ["cargo", *arguments[:1], "--locked", "--offline", "-p", "nccl-net-ferrite", "--lib", *arguments[1:]]
        own = {"CARGO_TARGET_DIR": str(self.target), "CARGO_INCREMENTAL": "1", "CARGO_BUILD_JOBS": "1", "RUSTFLAGS": "--cap-lints=allow"}
        return run(command, own, 900, self.sources)

    def build(self) -> bool:
        code, self.said = self.cargo("build", "--release", *PROFILE)
        if code == 0:
            shutil.copy(self.target / "release/libnccl_net.so", self.dist / "lib/libnccl-net.so")
        return code == 0

    def outcome(self, change: Change, tests: Iterable[Test]) -> tuple[str, str]:
        """One of OUTCOMES, and the test that has noticed."""
        self.patch(change, undo=False)
        try:
            if not self.build():
                return "unviable", ""
            for test in tests:
                limit = max(LIMIT_S, LIMIT_TIMES * test.seconds)
                code, _ = run([str(test.program), "--exact", test.name], {"FERRITE_DIST": str(self.dist)}, limit)
                if code != 0:
                    return "timeout" if code is None else "caught", test.name
            # They take as long to build as all tests before them to run.
            code, _ = self.cargo("test", "--quiet", "--", "net::")
            return ("missed", "") if code == 0 else ("timeout" if code is None else "caught", UNIT_TESTS)
        finally:
            self.patch(change, undo=True)


class Run:
    """What is left to try, and what has been found."""

    def __init__(self, found: Path, left: list[Change], tests: list[Test], until: float) -> None:
        self.found, self.tests, self.until = found, tests, until
        self.left: Queue[Change] = Queue()
        for number, change in enumerate(left):
            if number % CONTROL_EVERY == 0:
                self.left.put(Change("", "", ""))
            self.left.put(change)
        self.lock = threading.Lock()
        self.counts = dict.fromkeys(OUTCOMES, 0)
        self.noticed = Counter[str]()
        self.controls: list[str] = []

    def work(self, number: int) -> None:
        copy = Copy(self.found / f"copy-{number}")
        while time.monotonic() < self.until:
            try:
                change = self.left.get_nowait()
            except Empty:
                return
            with self.lock:
                tests = self.ordered()
            outcome, test = copy.outcome(change, tests)
            with self.lock:
                self.tell(change, outcome, test)

    def ordered(self) -> list[Test]:
        """Those that have noticed most changes for the time that they take, then the quickest."""
        return sorted(self.tests, key=lambda test: (-self.noticed[test.name] / test.seconds, test.seconds))

    def tell(self, change: Change, outcome: str, test: str) -> None:
        if not change.name:
            self.controls.append("" if outcome == "missed" else test or outcome)
            return
        self.counts[outcome] += 1
        if outcome == "caught":
            self.noticed[test] += 1
        with (self.found / "mutants.out" / f"{outcome}.txt").open("a") as file:
            file.write(f"{change.name}\n")
        with (self.found / "mutants.out/noticed_by.txt").open("a") as file:
            file.write(f"{outcome}\t{change.name}\t{test}\n")


def keep(results: Path, names: set[str]) -> set[str]:
    """Which of these changes earlier runs have tried. Changes of other sources are removed from the results."""
    known = set[str]()
    for file in (results / f"{name}.txt" for name in OUTCOMES):
        if file.exists():
            kept = [line for line in file.read_text().splitlines() if line in names]
            file.write_text("".join(f"{line}\n" for line in kept))
            known.update(kept)
    return known


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=Path, help="what `cargo mutants --list --json --diff` has printed (asks it)")
    parser.add_argument(
        "--jobs",
        type=positive,
        default=max(1, (os.cpu_count() or 1) // 2),
        help="changes that are tried at a time (one for two processors)",
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begins no further change after this time (no limit)")
    parser.add_argument("--programs", type=Path, nargs=len(PROGRAMS), help="the compiled tests (compiles them)")
    parser.add_argument("--found", type=Path, default=ROOT / "target/mutation-plugin", help="where the results lie")
    given = parser.parse_args()

    until = time.monotonic() + given.seconds
    all_changes = changes(given.changes)
    found = given.found.resolve()
    (found / "mutants.out").mkdir(parents=True, exist_ok=True)
    known = keep(found / "mutants.out", {change.name for change in all_changes})
    left = [change for change in all_changes if change.name not in known]
    tests = measured([one.resolve() for one in given.programs or programs()], ROOT / "dist", given.jobs)
    if not tests:
        sys.exit("mutation_plugin.py: no test passes without a change")
    first = Copy(found / "copy-0")
    # Without this, sources that do not compile would pass for changes that do not.
    if not first.build():
        sys.exit(f"mutation_plugin.py: the sources do not compile without a change:\n{first.said}")
    seconds = sum(test.seconds for test in tests)
    print(f"{len(all_changes)} changes, {len(left)} of them left; {len(tests)} tests, {seconds:.0f} s", flush=True)

    run_of_all = Run(found, left, tests, until)
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(run_of_all.work, range(given.jobs)))
    failed = [name for name in run_of_all.controls if name]
    print(f"{len(run_of_all.controls)} copies without a change, {len(failed)} failed: {', '.join(failed) or 'none'}")
    print(", ".join(f"{count} {outcome}" for outcome, count in run_of_all.counts.items()) + " in this run")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
