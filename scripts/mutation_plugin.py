#!/usr/bin/env python3
"""Changes set-up and data path of the plugin in every way that cargo-mutants knows, one at a time, and sees whether the tests notice.

    mutation_plugin.py [--changes FILE] [--jobs N] [--seconds S] [--longest S] [--missed] [--programs FILE ...] [--found FOLDER]

    scripts/mutation_plugin.py                       # some hours of processor time; goes on where the last run was ended
    scripts/mutation_plugin.py --longest 0.8         # sooner: most changes are noticed by tests that are as quick
    scripts/mutation_plugin.py --longest 40 --missed # then the longer tests, where these have missed a change

It takes dist/ (scripts/build.sh) and cargo-mutants; with --changes, a file has what `cargo mutants --list --json --diff` prints. Each
change is made in a copy of the sources, of which the library alone is built. Then the test programs of PROGRAMS run their tests until
one fails, and so do the library's unit tests, as one test: first those that have noticed most changes for the time that they take, above
all in the same file, then the quickest. Before that all tests of the programs run once without a change: those that fail, are skipped or
take longer than --longest are left out. A test has noticed a change if it fails with it, passes without it directly after that, and fails
with it again. A test that fails without the change is not asked again, and what it has noticed is tried anew. The order is drawn at
random, so that the changes of a run that is ended are a sample. What was found lies in FOLDER (target/mutation-plugin);
mutation_summary.py counts it. The sources must stay as they are until it ends.
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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue

from schedules import positive

ROOT = Path(__file__).resolve().parent.parent
# What is changed. exclusive_cell.rs has tests of its own, with a model checker.
FILES = ("src/net/setup/**", "src/net/data/**")
NOT = ("src/net/data/exclusive_cell.rs", "src/net/data/exclusive_cell_tests.rs")
PROGRAMS = ("plugin", "recovery", "hang_report")
# How much longer a test may take with a change before it is taken for endless: at least LIMIT_S seconds.
LIMIT_S, LIMIT_TIMES = 10, 8
# As quick to build as can be, and as the plugin is otherwise: without checks for overflow.
PACKAGE = "profile.release.package.nccl-net-ferrite"
PROFILE = ("--config", f"{PACKAGE}.codegen-units=64", "--config", f"{PACKAGE}.opt-level=0")
PLUGIN = "lib/libnccl-net.so"
OUTCOMES = ("caught", "missed", "timeout", "unviable")


@dataclass(frozen=True)
class Test:
    """A test of a program, and how long it takes without a change."""

    program: Path
    name: str
    seconds: float


# With what it takes to build them. They come before those that have noticed nothing yet.
UNIT_TESTS = Test(Path(), "the unit tests of the library", 30)


@dataclass(frozen=True)
class Change:
    """One change as cargo-mutants names it."""

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


def measured(built: list[Path], dist: Path, jobs: int, longest: float) -> tuple[list[Test], set[str]]:
    """The tests that pass without a change within `longest` seconds, quickest first, and the names of those that fail."""
    failed = set[str]()

    def measure(program: Path, name: str) -> Test | None:
        begun = time.monotonic()
        code, said = run([str(program), "--exact", name, "--nocapture"], {"FERRITE_DIST": str(dist)}, longest)
        seconds = time.monotonic() - begun
        if code == 0 and "skipped: " not in said:
            return Test(program, name, seconds)
        why = "it is skipped"
        if code is None:
            why = f"it takes longer than {longest:g} s"
        elif code != 0:
            failed.add(name)
            why = f"it fails without a change, with exit status {code}"
        print(f"left out: {name}: {why}", flush=True)
        return None

    named = []
    for program in built:
        listed = subprocess.run([str(program), "--list"], check=True, capture_output=True, text=True).stdout
        named += [(program, line.removesuffix(": test")) for line in listed.splitlines() if line.endswith(": test")]
    with ThreadPoolExecutor(jobs) as pool:
        tests = [test for test in pool.map(lambda one: measure(*one), named) if test]
    return sorted(tests, key=lambda test: test.seconds), failed


def copy_if_other(source: str, copy: str) -> None:
    """So that cargo builds again what is other than it was in an earlier run, and nothing else."""
    if not Path(copy).exists() or not filecmp.cmp(source, copy, shallow=False):
        shutil.copy(source, copy)


def dist_with(folder: Path, library: Path | None) -> None:
    """What ROOT/dist has, but for the plugin, which is a copy of `library`."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lib").mkdir(parents=True)
    for entry in (ROOT / "dist").iterdir():
        if entry.name != "lib":
            (folder / entry.name).symlink_to(entry)
    if library:
        shutil.copy(library, folder / PLUGIN)


def status(test: Test, dist: Path) -> int | None:
    """The exit status of the test with the plugin of `dist`, None if it does not end in time."""
    limit = max(LIMIT_S, LIMIT_TIMES * test.seconds)
    code, _ = run([str(test.program), "--exact", test.name], {"FERRITE_DIST": str(dist)}, limit)
    return code


class Copy:
    """Sources of its own, what is built from them, and a dist/ with that."""

    def __init__(self, folder: Path) -> None:
        self.sources, self.dist, self.target = folder / "sources", folder / "dist", folder / "target"
        without = shutil.ignore_patterns("target", "dist", "benchmarks", "packages", ".*")
        shutil.copytree(ROOT, self.sources, ignore=without, copy_function=copy_if_other, dirs_exist_ok=True)
        # The unit tests do not use the companion, which would be built anew with each change, as it uses the library.
        manifest = self.sources / "Cargo.toml"
        manifest.write_text("".join(line for line in manifest.read_text().splitlines(True) if not line.startswith("ferrite = ")))
        dist_with(self.dist, None)

    def patch(self, change: Change, *, undo: bool) -> None:
        command = ["patch", "--quiet", "--no-backup-if-mismatch", *(["--reverse"] if undo else []), change.file]
        subprocess.run(command, cwd=self.sources, input=change.diff, text=True, check=True)

    def cargo(self, *arguments: str) -> tuple[int | None, str]:
        """Of the library alone; the exit status, None if it did not end, and what was printed."""
        command = ["cargo", *arguments[:1], "--offline", "-p", "nccl-net-ferrite", "--lib", *arguments[1:]]
        own = {"CARGO_TARGET_DIR": str(self.target), "CARGO_INCREMENTAL": "1", "CARGO_BUILD_JOBS": "1", "RUSTFLAGS": "--cap-lints=allow"}
        return run(command, own, 900, self.sources)

    def build(self) -> bool:
        code, self.said = self.cargo("build", "--release", *PROFILE)
        if code == 0:
            shutil.copy(self.target / "release/libnccl_net.so", self.dist / PLUGIN)
        return code == 0

    def unit_tests(self) -> int | None:
        """0 if they pass at one of two times or cannot be built, None if they do not end."""
        code, _ = self.cargo("test", "--quiet", "--no-run")
        if code != 0:
            return 0
        code, _ = self.cargo("test", "--quiet", "--", "net::")
        return code if code == 0 else self.cargo("test", "--quiet", "--", "net::")[0]

    def outcome(self, change: Change, tests: Iterable[Test], unchanged: Path, distrust: Callable[[Test], None]) -> tuple[str, str]:
        """One of OUTCOMES, and the test that has noticed."""
        self.patch(change, undo=False)
        try:
            if not self.build():
                return "unviable", ""
            for test in tests:
                if test is UNIT_TESTS:
                    code = self.unit_tests()
                    if code == 0:
                        continue
                    return "timeout" if code is None else "caught", test.name
                if status(test, self.dist) == 0:
                    continue
                if status(test, unchanged) != 0:
                    distrust(test)
                    continue
                code = status(test, self.dist)
                if code != 0:
                    return "timeout" if code is None else "caught", test.name
            return "missed", ""
        finally:
            self.patch(change, undo=True)


class Found:
    """What has become of each change, and the test that has noticed it; kept in `folder`, as mutation_summary.py reads it."""

    def __init__(self, folder: Path, names: set[str], without_missed: bool = False) -> None:
        """What earlier runs have found of these changes; other sources have others. Perhaps without those that were missed."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.all = folder, dict[str, tuple[str, str]]()
        file = folder / "outcomes.txt"
        for line in file.read_text().splitlines() if file.exists() else []:
            outcome, name, test = line.split("\t")
            if name in names and not (without_missed and outcome == "missed"):
                self.all[name] = (outcome, test)
        self.write()

    def write(self) -> None:
        self.write_one("outcomes", [f"{outcome}\t{name}\t{test}" for name, (outcome, test) in self.all.items()])
        for outcome in OUTCOMES:
            self.write_one(outcome, [name for name, (other, _) in self.all.items() if other == outcome])

    def write_one(self, name: str, lines: list[str]) -> None:
        """All or nothing: a run may be ended at any time."""
        new = self.folder / f"{name}.new"
        new.write_text("".join(f"{line}\n" for line in lines))
        new.replace(self.folder / f"{name}.txt")

    def forget(self, test: str) -> list[str]:
        """The changes that `test` has noticed, which are not known any more."""
        names = [name for name, (_, by) in self.all.items() if by == test]
        for name in names:
            del self.all[name]
        return names

    def by_test(self, file: str) -> Counter[str]:
        """How many changes each test has noticed; those of `file` count ten times as much."""
        noticed = Counter({UNIT_TESTS.name: 1})
        for name, (_, test) in self.all.items():
            noticed[test] += 10 if name.startswith(f"{file}:") else 1
        return noticed


class Run:
    """What is left to try, and what has been found."""

    def __init__(
        self,
        folder: Path,
        changes_of_all: list[Change],
        tests: list[Test],
        until: float,
        failing: Iterable[str] = (),
        missed: bool = False,
    ) -> None:
        """`failing` tests fail without a change. `missed`: what earlier runs have missed is tried again."""
        self.folder, self.tests, self.until = folder, tests, until
        self.changes = {change.name: change for change in changes_of_all}
        self.found = Found(folder / "mutants.out", set(self.changes), missed)
        self.distrusted = set(failing)
        for test in self.distrusted:
            self.found.forget(test)
        self.left = Queue[Change]()
        for change in changes_of_all:
            if change.name not in self.found.all:
                self.left.put(change)
        self.lock = threading.Lock()

    def work(self, number: int) -> None:
        copy = Copy(self.folder / f"copy-{number}")
        while time.monotonic() < self.until:
            try:
                change = self.left.get_nowait()
            except Empty:
                return
            outcome = copy.outcome(change, self.next_test(change.file), self.folder / "unchanged", self.distrust)
            with self.lock:
                # Meanwhile another change may have shown that the test fails without one.
                if outcome[1] in self.distrusted:
                    self.left.put(change)
                else:
                    self.found.all[change.name] = outcome
                    self.found.write()

    def next_test(self, file: str) -> Iterator[Test]:
        """Each test: those that have noticed most changes for the time that they take, above all in `file`, then the quickest."""
        with self.lock:
            noticed = self.found.by_test(file)
            order = sorted([*self.tests, UNIT_TESTS], key=lambda test: (-noticed[test.name] / test.seconds, test.seconds))
        for test in order:
            # Another change may have shown meanwhile that it fails without one.
            if test.name not in self.distrusted:
                yield test

    def distrust(self, test: Test) -> None:
        """A test that fails without a change is not asked again, and what it has noticed is tried anew."""
        with self.lock:
            if test.name in self.distrusted:
                return
            self.distrusted.add(test.name)
            again = self.found.forget(test.name)
            print(f"{test.name} fails without a change: it is left out, and {len(again)} changes are tried anew", flush=True)
            for name in again:
                self.left.put(self.changes[name])
            self.found.write()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--changes",
        type=Path,
        help="what `cargo mutants --list --json --diff` has printed (asks it); of other changes, what was found earlier is removed",
    )
    parser.add_argument(
        "--jobs",
        type=positive,
        default=max(1, (os.cpu_count() or 1) // 2),
        help="changes that are tried at a time (one for two processors)",
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begins no further change after this time (no limit)")
    parser.add_argument("--longest", type=float, default=4, help="asks tests that take so many seconds without a change (4)")
    parser.add_argument("--missed", action="store_true", help="tries again what earlier runs have missed")
    parser.add_argument("--programs", type=Path, nargs=len(PROGRAMS), help="the compiled tests (compiles them)")
    parser.add_argument("--found", type=Path, default=ROOT / "target/mutation-plugin", help="where the results lie")
    given = parser.parse_args()

    until = time.monotonic() + given.seconds
    folder = given.found.resolve()
    tests, failing = measured([one.resolve() for one in given.programs or programs()], ROOT / "dist", given.jobs, given.longest)
    if not tests:
        sys.exit("mutation_plugin.py: no test passes without a change")
    first = Copy(folder / "copy-0")
    # Without this, sources that do not compile would pass for changes that do not.
    if not first.build():
        sys.exit(f"mutation_plugin.py: the sources do not compile without a change:\n{first.said}")
    dist_with(folder / "unchanged", first.dist / PLUGIN)
    # Or any change that no other test notices would be noticed by these.
    code, said = first.cargo("test", "--quiet", "--", "net::")
    if code != 0:
        sys.exit(f"mutation_plugin.py: {UNIT_TESTS.name} fail without a change:\n{said}")

    of_all = Run(folder, changes(given.changes), tests, until, failing, given.missed)
    seconds = sum(test.seconds for test in tests)
    print(f"{len(of_all.changes)} changes, {of_all.left.qsize()} of them left; {len(tests)} tests, {seconds:.0f} s", flush=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(of_all.work, range(given.jobs)))
    counts = Counter(outcome for outcome, _ in of_all.found.all.values())
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES) + f", {of_all.left.qsize()} left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
