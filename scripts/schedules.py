#!/usr/bin/env python3
"""Runs the simulators over many seeds, on all processors, until it is done or stopped; started again, it goes on.

    schedules.py SEEDS [--first SEED] [--chunk SEEDS] [--jobs N] [--seconds S] [--program FILE] [--done FILE]

Each of the simulators (the tests named `sim::` of the protocol and of the plugin that take seeds) runs the seeds from FIRST to
FIRST + SEEDS - 1.
A line each minute says how many schedules have run. A failed schedule is named with its simulator and seed, and does not end the run.
The exit status is 1 if one failed, 2 if it was stopped before the end.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPLAY = re.compile(r"FERRITE_SIM_SEED=(\d+)")
# Tests beside the simulators, with seeds of their own or none.
OWN_SEEDS = ("::known_", "::a_seed_is_", "::each_event_", "::whatever_strangers_", "::visits::")


@dataclass(frozen=True)
class Part:
    """Seeds of one simulator that one process runs."""

    program: Path
    simulator: str
    first: int
    count: int

    def line(self) -> str:
        return f"{self.simulator} {self.first} {self.count}\n"


def build() -> list[Path]:
    """The tests of the protocol and of the plugin, compiled with optimisation."""
    command = ["cargo", "test", "--release", "-p", "ferrite-proto", "-p", "nccl-net-ferrite", "--lib", "--locked", "--no-run"]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    found = re.findall(r"Executable .*\((.+)\)", done.stderr)
    if done.returncode or len(found) != 2:
        sys.exit(f"schedules.py: {' '.join(command)} has failed:\n{done.stderr}")
    return [ROOT / program for program in found]


def simulators(program: Path) -> list[str]:
    listed = subprocess.run([str(program), "--list"], check=True, capture_output=True, text=True).stdout
    names = [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]
    return [name for name in names if "::sim::" in f"::{name}" and not any(own in name for own in OWN_SEEDS)]


class Run:
    """Parts that are left, and what has become of the others."""

    def __init__(self, done: Path, until: float) -> None:
        self.done, self.until = done, until
        self.lock = threading.Lock()
        self.schedules, self.failures = 0, list[str]()
        self.is_stopped = False

    def take(self, part: Part) -> None:
        if self.is_stopped or time.monotonic() >= self.until:
            self.is_stopped = True
            return
        settings = {"FERRITE_SIM_SEED": str(part.first), "FERRITE_SIM_SEEDS": str(part.count)}
        command = [str(part.program), "--exact", part.simulator]
        # A process group of its own: what interrupts this program does not count as a failure there.
        done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, start_new_session=True)
        with self.lock:
            self.schedules += part.count
            if done.returncode:
                seed = REPLAY.search(done.stdout + done.stderr)
                what = f"FERRITE_SIM_SEED={seed[1]}" if seed else f"FERRITE_SIM_SEED={part.first} FERRITE_SIM_SEEDS={part.count}"
                self.failures.append(f"{what} {part.program} --exact {part.simulator}")
                print(f"failed: {self.failures[-1]}", flush=True)
            else:
                with self.done.open("a") as file:
                    file.write(part.line())


def report(run: Run, total: int, end: threading.Event) -> None:
    while not end.wait(60):
        print(f"{run.schedules:,} of {total:,} schedules, {len(run.failures)} failed", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=positive)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--chunk", type=positive, default=20_000, help="seeds that one process runs (20000)")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, help="processes at a time (one per processor)")
    parser.add_argument("--seconds", type=positive, help="begins no further process after this time (no limit)")
    parser.add_argument("--program", type=Path, action="append", help="compiled tests; may be repeated (compiles those of both packages)")
    parser.add_argument("--done", type=Path, help="where parts that were right are written down (target/schedules/HASH OF THE PROGRAMS)")
    given = parser.parse_args()

    programs = [program.resolve() for program in given.program or build()]
    names = [(program, name) for program in programs for name in simulators(program)]
    for program in programs:
        if program not in dict(names):
            sys.exit(f"schedules.py: {program} has no simulators")
    contents = hashlib.sha256(b"".join(program.read_bytes() for program in programs))
    done = given.done or ROOT / "target/schedules" / contents.hexdigest()[:16]
    done.parent.mkdir(parents=True, exist_ok=True)
    known = set(done.read_text().splitlines()) if done.exists() else set()
    starts = range(given.first, given.first + given.seeds, given.chunk)
    parts = [Part(*name, first, min(given.chunk, given.first + given.seeds - first)) for first in starts for name in names]
    left = [part for part in parts if part.line().strip() not in known]
    total = sum(part.count for part in left)
    print(f"{len(names)} simulators, {total:,} schedules to run, {given.seeds * len(names) - total:,} known to be right", flush=True)

    run = Run(done, time.monotonic() + (given.seconds or float("inf")))
    end = threading.Event()
    threading.Thread(target=report, args=(run, total, end), daemon=True).start()
    with ThreadPoolExecutor(given.jobs) as pool:
        try:
            list(pool.map(run.take, left))
        except KeyboardInterrupt:
            run.is_stopped = True
    end.set()
    print(f"{run.schedules:,} of {total:,} schedules, {len(run.failures)} failed" + (", stopped before the end" if run.is_stopped else ""))
    return 1 if run.failures else 2 if run.is_stopped else 0


def positive(text: str) -> int:
    number = int(text.replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
