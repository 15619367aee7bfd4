#!/usr/bin/env python3
"""Runs libFuzzer on what a peer may say, on schedules of the simulators and on files of statistics, on all processors.

    fuzz.py SECONDS [--targets NAME,NAME] [--jobs N] [--keep]

    scripts/fuzz.py 600                                # all targets, in 80 minutes
    scripts/fuzz.py 600 --targets schedules --keep

It takes an x86-64 processor and a C++ compiler. Each target (crates/proto/src/fuzz.rs, crates/ferrite/src/fuzz.rs) runs for SECONDS,
one after the other, from the inputs that are kept in tests/fuzz/corpus and those that earlier runs have found (target/fuzz). With --keep,
those that reach something that the others do not replace the kept ones, but no more than the shortest 600 of a target (of `stats`, 200); a
test of each library runs these. An input that breaks something is named with the command that runs it again, and ends the run.
The exit status is 1 then, 2 if it could not be tried.
"""

import argparse
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests/fuzz/corpus"
TARGETS = ("frames", "bodies", "sender", "receiver", "schedules", "control", "stats", "doctor")
HOST = "x86_64-unknown-linux-gnu"
# Inputs of a target that are kept. A test runs them; one of files of statistics takes it 5 ms.
MOST = 600
MOST_STATS = 200
# What libFuzzer has to be told: counters of each branch, and the values that are compared.
COVERAGE = ("level=4", "inline-8bit-counters", "pc-table", "trace-compares")
FLAGS = ["--cfg=fuzzing", "-Cpasses=sancov-module"]
FLAGS += [f"-Cllvm-args=-sanitizer-coverage-{flag}" for flag in COVERAGE] + ["-Cllvm-args=-simplifycfg-branch-fold-threshold=0"]


def build(folder: Path) -> Path:
    """The fuzzer, with all targets."""
    settings = {"RUSTFLAGS": " ".join(FLAGS), "CARGO_TARGET_DIR": str(folder / "build")}
    command = ["cargo", "build", "--release", "--locked", "--quiet", "--target", HOST, "--manifest-path", "tests/fuzz/Cargo.toml"]
    if subprocess.run(command, cwd=ROOT, env=os.environ | settings, check=False).returncode:
        sys.exit(2)
    return folder / "build" / HOST / "release/fuzz"


def unpacked(packed: bytes) -> list[bytes]:
    """The inputs in a file, of which each has its length in front, in four bytes, the lowest first."""
    inputs, at = [], 0
    while at < len(packed):
        (length,) = struct.unpack_from("<I", packed, at)
        inputs.append(packed[at + 4 : at + 4 + length])
        at += 4 + length
    return inputs


def packed(inputs: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(one)) + one for one in sorted(inputs, key=lambda one: (len(one), one)))


class Fuzzer:
    """The fuzzer with one target, and its inputs."""

    def __init__(self, program: Path, target: str, folder: Path) -> None:
        self.program, self.target = program, target
        self.inputs, self.broken = folder / "inputs" / target, folder / "broken"
        self.kept = CORPUS / f"{target}.inputs"

    def run(self, *arguments: str) -> int:
        settings = {"FERRITE_FUZZ": self.target}
        return subprocess.run([self.program, *arguments], env=os.environ | settings, cwd=self.broken, check=False).returncode

    def search(self, seconds: int, jobs: int) -> bool:
        """Whether no input has broken anything."""
        self.inputs.mkdir(parents=True, exist_ok=True)
        self.broken.mkdir(parents=True, exist_ok=True)
        for number, one in enumerate(unpacked(self.kept.read_bytes()) if self.kept.exists() else []):
            (self.inputs / f"kept-{number}").write_bytes(one)
        before = set(self.broken.iterdir())
        code = self.run(
            f"-fork={jobs}",
            f"-max_total_time={seconds}",
            "-max_len=1024",
            "-timeout=60",
            f"-artifact_prefix={self.target}-",
            str(self.inputs),
        )
        found = [
            path for path in set(self.broken.iterdir()) - before if path.name.startswith(f"{self.target}-") and "slow-unit" not in path.name
        ]
        for path in found:
            print(f"broken: FERRITE_FUZZ={self.target} {self.program} {path}", flush=True)
        return code == 0 and not found

    def keep(self) -> None:
        least = self.inputs.with_name(f"{self.target}-least")
        shutil.rmtree(least, ignore_errors=True)
        least.mkdir()
        if self.run("-merge=1", str(least), str(self.inputs)):
            sys.exit(2)
        inputs = sorted((path.read_bytes() for path in least.iterdir()), key=len)[: MOST_STATS if self.target == "stats" else MOST]
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        self.kept.write_bytes(packed(inputs))
        print(f"{self.kept.relative_to(ROOT)}: {len(inputs)} inputs, {self.kept.stat().st_size} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=positive)
    parser.add_argument("--targets", type=names, default=TARGETS, help=f"of {', '.join(TARGETS)} (all)")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, help="processes at a time (one per processor)")
    parser.add_argument("--keep", action="store_true", help="keeps the inputs that reach most")
    given = parser.parse_args()

    folder = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / "fuzz"
    program = build(folder)
    for target in given.targets:
        fuzzer = Fuzzer(program, target, folder)
        print(f"== {target}", flush=True)
        if not fuzzer.search(given.seconds, given.jobs):
            return 1
        if given.keep:
            fuzzer.keep()
    return 0


def positive(text: str) -> int:
    number = int(text.replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def names(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    for name in chosen:
        if name not in TARGETS:
            raise argparse.ArgumentTypeError(f"{name}: {', '.join(TARGETS)} are allowed")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
