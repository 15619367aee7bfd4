#!/usr/bin/env python3
"""Proves that `ferrite compare` finds planted differences, and claims none between equal sides: a table of many runs.

    proof_compare.py DIST --prepare                 compiles the plugin that delays (needs cc) into DIST
    proof_compare.py DIST [--runs N] [--cores LIST] [--parallel N] [--seconds S] [--out FILE] [--only CASE ...]

DIST is a built folder (bin/ferrite, lib/libnccl-net.so, softrnic/, lib/delay.so); nothing else of the repository is needed. Each run
has two cores of its own. Cases: planted-quiet (latency 3 % longer), planted-busy (5 %, beside a program that keeps one of the two
cores busy), same-quiet and same-busy (the same library on both sides). The delay is derived from a latency that is measured first, on
the first two cores. Writes a table as Markdown to FILE, and each run beside it.

The exit status is 0 if the figures are reached, and 1 if not.
"""

import argparse
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
# A program that keeps a core busy, with memory traffic.
BUSY = "a = bytearray(1 << 20)\nwhile True:\n    a = bytes(a) and a[1:] + a[:1]"
UNDECIDED = 3


@dataclass(frozen=True)
class Case:
    name: str
    words: str
    percent: float
    is_busy: bool
    # Which part of the runs has to find the delay, and how long the longest may take.
    share: float
    most_seconds: float


CASES = [
    Case("planted-quiet", "latency 3 % longer, quiet", 3, False, 1.0, 62),
    Case("planted-busy", "latency 5 % longer, one of two cores busy", 5, True, 0.95, 77),
    Case("same-quiet", "the same library, quiet", 0, False, 1.0, 62),
    Case("same-busy", "the same library, one of two cores busy", 0, True, 1.0, 77),
]


@dataclass
class Run:
    case: Case
    number: int
    seconds: float
    code: int
    # By group: finding, and the interval as text.
    findings: dict[str, tuple[str, str]]
    sets: int
    disturbed: float
    said: str

    def claims(self) -> list[str]:
        return [name for name, (finding, _) in self.findings.items() if finding in ("better", "worse")]

    def is_right(self) -> bool:
        expected = ["latency"] if self.case.percent else []
        slower = self.findings.get("latency", ("", ""))[0] == "worse"
        return self.claims() == expected and (slower or not expected)


class Proof:
    def __init__(self, options: argparse.Namespace) -> None:
        self.dist: Path = options.dist.resolve()
        self.options = options
        self.delay = self.dist / "lib/delay.so"
        self.plugin = self.dist / "lib/libnccl-net.so"
        cores = cores_of(options.cores) if options.cores else sorted(os.sched_getaffinity(0))
        pairs = [(cores[at], cores[at + 1]) for at in range(0, len(cores) - 1, 2)][: options.parallel]
        if not pairs:
            sys.exit("proof_compare.py: two cores are needed")
        self.pairs: queue.Queue[tuple[int, int]] = queue.Queue()
        for pair in pairs:
            self.pairs.put(pair)
        self.count = len(pairs)
        # Nanoseconds that a message of this size takes.
        self.base: dict[int, float] = {}
        self.lock = threading.Lock()

    def compare(self, delays: tuple[str, str] | None, case: Case, number: int, seconds: int) -> tuple[Run, dict[str, object]]:
        """One comparison on two cores: of the plugin with itself, or of two plugins that delay by so much."""
        pair = self.pairs.get()
        folder = self.options.out.with_suffix("") / f"{case.name}-{number}"
        side = self.delay if delays else self.plugin
        command = ["taskset", "-c", f"{pair[0]},{pair[1]}", str(self.dist / "bin/ferrite"), "compare"]
        command += ["--against", str(side), "--plugin", str(side), "--seconds", str(seconds), "--report", str(folder)]
        if delays:
            command += ["--set-a", f"DELAY={delays[0]}", "--set-b", f"DELAY={delays[1]}"]
        environment = os.environ | {"DELAY_OF": str(self.plugin), "DELAY_WHEN": "alone", "FERRITE_DIST": str(self.dist)}
        busy = None
        try:
            if case.is_busy:
                busy = subprocess.Popen(["taskset", "-c", str(pair[number % 2]), sys.executable, "-c", BUSY])
            begin = time.monotonic()
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            took = time.monotonic() - begin
        finally:
            if busy:
                busy.kill()
                busy.wait()
            self.pairs.put(pair)
        raw = json.loads((folder / "raw.json").read_text()) if (folder / "raw.json").exists() else {"groups": [], "sets": []}
        (folder / "raw.json").unlink(missing_ok=True)
        blocks = [one for each in raw["sets"] for turns in each["turns"] if turns["bytes"] for one in turns["disturbed"]]
        findings = {group["name"]: (group["finding"], interval(group)) for group in raw["groups"]}
        run = Run(
            case, number, took, done.returncode, findings, len(raw["sets"]), sum(blocks) / max(len(blocks), 1), done.stdout + done.stderr
        )
        return run, raw

    def calibrate(self) -> None:
        """The time of a message without a delay."""
        case = Case("calibration", "", 0, False, 1, 0)
        _, raw = self.compare(("", ""), case, 0, 20)
        rows = [row for row in raw["rows"] if row["metric"] == "latency"]  # type: ignore[attr-defined]
        self.base = {row["bytes"]: row["a"] * 1e3 for row in rows}
        if not self.base:
            sys.exit("proof_compare.py: nothing was measured; see " + str(self.options.out.with_suffix("")))

    def delays(self, percent: float) -> str:
        return ",".join(f"{size}:{max(1, round(ns * percent / 100))}" for size, ns in self.base.items())

    def one(self, case: Case, number: int) -> Run:
        delays = ("", self.delays(case.percent)) if case.percent else None
        run, _ = self.compare(delays, case, number, self.options.seconds)
        with self.lock:
            right = "right" if run.is_right() else "WRONG" if run.claims() else "not found"
            print(f"{case.name} {number}: {right}, {run.seconds:.0f} s, {run.sets} sets, code {run.code}", flush=True)
        return run

    def all(self) -> list[Run]:
        cases = [case for case in CASES if not self.options.only or case.name in self.options.only]
        todo = [(case, number) for case in cases for number in range(self.options.runs)]
        with ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(lambda each: self.one(*each), todo))


def interval(group: dict[str, object]) -> str:
    ratio = group["ratio"]
    assert isinstance(ratio, dict)
    return f"{ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def cores_of(text: str) -> list[int]:
    """`0-3,8` as a list."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def table(runs: list[Run], proof: Proof) -> tuple[str, bool]:
    lines = [
        "# Planted differences and equal sides",
        "",
        f"`{' '.join(sys.argv)}`, {time.strftime('%d %b %Y', time.gmtime())}; {machine()}; {proof.count} at once, two cores each.",
        "",
        "| case | runs | right | found | false claims | time to the verdict, median and longest; s | sets, median | blocks disturbed |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    reached = True
    for case in CASES:
        mine = [run for run in runs if run.case == case]
        if not mine:
            continue
        right = sum(run.is_right() for run in mine)
        found = sum(run.findings.get("latency", ("",))[0] == "worse" for run in mine) if case.percent else None
        false = sum(len([name for name in run.claims() if not (case.percent and name == "latency")]) for run in mine)
        times, sets = sorted(run.seconds for run in mine), sorted(run.sets for run in mine)
        disturbed = sum(run.disturbed for run in mine) / len(mine)
        lines.append(
            f"| {case.words} | {len(mine)} | {right} | {'-' if found is None else found} | {false} "
            f"| {times[len(times) // 2]:.0f}, {times[-1]:.0f} | {sets[len(sets) // 2]} | {disturbed:.0%} |"
        )
        wanted = math.ceil(case.share * len(mine))
        reached &= (found is None or found >= wanted) and false == 0 and times[-1] <= case.most_seconds
    lines += ["", "Delays: " + (proof.delays(3) or "none") + " (bytes:ns) are 3 % of the latency.", "", "## Runs", ""]
    lines += ["| case | run | s | sets | code | latency B/A [interval] | claims |", "|---|---:|---:|---:|---:|---|---|"]
    for run in runs:
        latency = run.findings.get("latency", ("", "-"))[1]
        claims = ", ".join(f"{name} {run.findings[name][1]}" for name in run.claims()) or "none"
        lines.append(f"| {run.case.name} | {run.number} | {run.seconds:.0f} | {run.sets} | {run.code} | {latency} | {claims} |")
    failed = [run for run in runs if run.code not in (0, 1, UNDECIDED)]
    lines += [f"\n{run.case.name} {run.number} ended with {run.code}:\n\n```\n{run.said[-2000:]}\n```" for run in failed]
    return "\n".join(lines) + "\n", reached and not failed


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor")
    return f"{model}, {os.cpu_count()} processors"


def prepare(dist: Path) -> None:
    source = HERE.parent / "crates/ferrite/tests/fixtures/delay.c"
    command = ["cc", "-O2", "-shared", "-fPIC", f"-I{HERE.parent / 'include'}", "-o", str(dist / "lib/delay.so"), str(source)]
    subprocess.run(command, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path, metavar="DIST")
    parser.add_argument("--prepare", action="store_true", help="compiles DIST/lib/delay.so, and ends")
    parser.add_argument("--runs", type=int, default=20, help="of each case [default: 20]")
    parser.add_argument("--cores", metavar="LIST", help="such as 0-15 [default: all that this process may use]")
    parser.add_argument("--parallel", type=int, default=1, help="runs at once, each on two cores of its own [default: 1]")
    parser.add_argument("--seconds", type=int, default=60, help="of each comparison [default: 60]")
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES], help="these cases [default: all]")
    parser.add_argument("--out", type=Path, default=Path("proof.md"), help="[default: proof.md]")
    options = parser.parse_args()
    if options.prepare:
        prepare(options.dist)
        return 0
    proof = Proof(options)
    if not proof.delay.exists():
        sys.exit(f"proof_compare.py: {proof.delay} is missing; --prepare makes it")
    proof.calibrate()
    text, reached = table(proof.all(), proof)
    options.out.write_text(text)
    print(text.split("## Runs")[0])
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
