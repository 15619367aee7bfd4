#!/usr/bin/env python3
"""Many connections between two processes on the software device: Ferrite beside the built-in transports of stock NCCL, in turns.

    connections.py DIST [--counts LIST] [--releases LIST] [--command-us LIST] [--rounds N] [--singles N] [--idle SECONDS] [--out FILE]
    connections.py DIST --faults COUNT [--command-us LIST] [--releases LIST] [--out FILE]

DIST is a built folder (scripts/build.sh). The first form makes connections, and says how long they took, how many commands the cards
carried out, and how much memory each end has. With --idle they are held for so long without a call. The second form makes COUNT
connections each way, which carry a message each, round after round, and takes a port down or a card away. "All recovered" is the longest
round: from before the fault until each connection has carried its message.

--command-us: how long a card takes for a command (SOFTRNIC_COMMAND_US). 100 and 300 are assumed, not measured on cards.
The table is Markdown. The exit status is 1 if Ferrite loses a message or a connection.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FERRITE = "Ferrite"
FAULTS = {
    "port down for 100 ms": "port-down=100ms device=softrnic0/1 times=1",
    "card away for 2 s": "device-fatal=2s device=softrnic0 times=1",
}
# From the fault to the end of the traffic; the built-in's retries take up to 30 s.
AFTER_MS = 15_000


@dataclass(frozen=True)
class Run:
    """Both ends of one run, as `ferrite connections` prints them: rank 0 sends, unless connections lead both ways."""

    ends: list[dict[str, Any]]
    count: int

    def all_ms(self) -> float:
        return float(self.ends[0]["all_ms"])

    def memory(self, end: int, kind: str) -> float:
        before, after, _ = self.ends[end]["memory"]
        return float(after[kind] - before[kind]) / self.count

    def commands(self, end: int) -> dict[str, float]:
        return {kind: count / self.count for kind, count in self.ends[end]["commands"][0].items() if count >= self.count / 100}

    def later_commands(self) -> int:
        return max(sum(int(count) for count in end["commands"][1].values()) for end in self.ends)

    def rounds(self) -> list[float]:
        return [max(pair) for pair in zip(self.ends[0]["rounds_ms"], self.ends[1]["rounds_ms"], strict=True)]

    def idle(self) -> tuple[float, int, float]:
        """Processor time in ms, wake-ups, and the growth of each connection in bytes, of the end that took the most time."""
        grown = [(end["memory"][2]["rss"] - end["memory"][1]["rss"]) / self.count for end in self.ends]
        return max((end["idle"]["cpu_ms"], end["idle"]["wake_ups"], more) for end, more in zip(self.ends, grown, strict=True))


def run(dist: Path, side: str, count: int, *words: str, command_us: int = 0) -> "Run | str":
    """One pair of processes; a text if it failed."""
    source = [f"--plugin={dist}/lib/libnccl-net.so"] if side == FERRITE else ["--stock", side]
    # Warnings are counted; each goes to the parent's standard output otherwise.
    env = {**os.environ, "SOFTRNIC_QUIET": "1", "SOFTRNIC_COMMAND_US": str(command_us), "NCCL_DEBUG": "WARN"}
    command = [f"{dist}/bin/ferrite", "connections", *source, "--count", str(count), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[{")]
    if done.returncode == 0 and lines:
        return Run(json.loads(lines[-1]), count)
    return next((line for line in done.stderr.splitlines() if line.strip()), f"exit status {done.returncode}")


def table(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]) + "\n"


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def kinds(commands: dict[str, float]) -> str:
    return ", ".join(f"{kind.replace('_', ' ')} {count:.2f}" for kind, count in sorted(commands.items())) or "-"


def made(options: argparse.Namespace, us: int, count: int) -> tuple[list[list[str]], bool]:
    """The rows of one number of connections."""
    sides = [*options.releases, FERRITE]
    runs: dict[str, list[Run]] = {side: [] for side in sides}
    failed = {}
    words = ["--singles", str(options.singles), "--idle-ms", str(options.idle * 1000)]
    for turn in range(options.rounds):
        # Each side is as often before as behind each other one.
        for side in sides if turn % 2 == 0 else sides[::-1]:
            found = run(options.dist, side, count, *words, command_us=us)
            if isinstance(found, Run):
                runs[side].append(found)
            else:
                failed[side] = found
    middle = {side: statistics.median(one.all_ms() for one in of) for side, of in runs.items() if of}
    memory = {side: [statistics.median(one.memory(end, "rss") for one in of) for end in (0, 1)] for side, of in runs.items() if of}
    rows = []
    for side in sides:
        if side not in middle:
            rows.append([str(us), str(count), side, failed[side]] + ["-"] * 7)
            continue
        singles = [ms for one in runs[side] for ms in one.ends[0]["single_ms"]]
        times = [f"{percentile(singles, part):.2f}" for part in (0.5, 0.99)] if singles else ["-", "-"]
        ratio = f"{middle[FERRITE] / middle[side]:.2f}" if FERRITE in middle and side != FERRITE else ""
        has_ratio = FERRITE in middle and side != FERRITE and sum(memory[side]) > 0
        both = f"{sum(memory[FERRITE]) / sum(memory[side]):.2f}" if has_ratio else ""
        first = runs[side][0]
        idle = "-"
        if options.idle:
            cpu_ms, wake_ups, grown = first.idle()
            idle = f"{cpu_ms / options.idle / 10:.3f} %, {wake_ups / options.idle:.1f}, {grown / 1000:.1f}"
        commands = "; ".join(kinds(first.commands(end)) for end in (0, 1))
        size = " + ".join(f"{value / 1000:.0f}" for value in memory[side])
        rows.append([str(us), str(count), side, f"{middle[side]:.0f}", ratio, *times, size, both, commands, idle])
    return rows, FERRITE in middle


def faults(options: argparse.Namespace, us: int) -> tuple[list[list[str]], bool]:
    """The rows of all faults."""
    rows, is_good = [], True
    for words, rule in FAULTS.items():
        for side in [*options.releases, FERRITE]:
            given = ["--both-ways", "--traffic-ms", str(AFTER_MS), "--fault", rule]
            found = run(options.dist, side, options.faults, *given, command_us=us)
            if isinstance(found, str):
                rows.append([words, str(us), side, found, "-", "-", "-"])
                is_good &= side != FERRITE
                continue
            rounds = found.rounds()
            lines = " + ".join(str(end["lines"]) for end in found.ends)
            told = [f"{max(rounds):.0f}", f"{statistics.median(rounds):.0f}", str(found.later_commands()), lines]
            rows.append([words, str(us), side, *told])
            if side == FERRITE and not found.later_commands():
                print(f"{words}: no connection has recovered, so the fault has not happened", file=sys.stderr)
                is_good = False
    return rows, is_good


def main() -> int:
    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description="See the head of this file.")
    parser.add_argument("dist", type=lambda text: Path(text).resolve())
    parser.add_argument("--counts", type=numbers, default=[1, 100, 1000, 4000])
    parser.add_argument("--releases", type=lambda text: [word for word in text.split(",") if word], default=["2.21.5", "2.32.3"])
    parser.add_argument("--command-us", type=numbers, default=[0, 100])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--singles", type=int, default=100)
    parser.add_argument("--idle", type=int, default=0)
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows, is_good = [], True
    for us in options.command_us:
        for count in options.counts if not options.faults else [options.faults]:
            found, is_one_good = faults(options, us) if options.faults else made(options, us, count)
            rows += found
            is_good &= is_one_good
    if options.faults:
        heads = [
            "fault",
            "us a command",
            "transport",
            "all recovered, ms",
            "median round, ms",
            "commands of a card after the set-up",
            "lines of both ends",
        ]
    else:
        heads = [
            "us a command",
            "connections",
            "transport",
            "ms",
            "Ferrite / it",
            "one, p50 ms",
            "one, p99 ms",
            "kB an end, sending + receiving",
        ]
        heads += ["Ferrite / it", "commands an end, sending; receiving", "idle: processor, wake-ups a second, kB more an end"]
    text = table(heads, rows)
    (options.out.write_text if options.out else sys.stdout.write)(text)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
