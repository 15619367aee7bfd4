#!/usr/bin/env python3
"""Has ports fall, processes stop and die, and connections be made anew for a time, and tells what is held at its beginning and its end.

    endurance.py MINUTES

    scripts/endurance.py 60

At the same time, each with checked messages:
  * one stream, of whose sender the only port is down for 20 ms in every second, and whose receiver is stopped for 50 ms every ten seconds
  * a process that sets up a connection with itself and closes all of it, some tens of times a second (scripts/reinit.py)
  * streams of which one end is killed, one after the other
It uses dist/, which scripts/build.sh makes. What the processes hold at the beginning is looked at when all that is kept has been
allocated: after 90 s, or a quarter of the time. The exit status is 1 if a message is missing or wrong, if a process that lives on holds
more files or threads at the end than at the beginning, or an eighth more memory, or if shared memory holds more than the statistics of
the latest 64 processes that were killed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flaps import ROOT, below, held, is_kept

FERRITE = [f"{ROOT}/dist/bin/ferrite", "outlast", "--plugin", f"{ROOT}/dist/lib/libnccl-net.so"]
DOWN, STOPPED = 20, 50
SETTLED_S = 90
ENDING_S = 180
# Of processes that were killed (src/stats/dead.rs): 64 are left when a process begins, and those come that are killed afterwards.
MOST_STATISTICS = 66


def falls(seconds: int) -> list[str]:
    """The stream whose port falls."""
    faults = []
    for second in range(1, seconds):
        at = second * 1000
        faults += [("port softrnic0/1 down", at), ("port softrnic0/1 up", at + DOWN)]
        if second % 10 == 0:
            faults += [("stop receiver", at + 500), ("continue receiver", at + 500 + STOPPED)]
    words = [word for fault, at in faults for word in ("--fault", fault, "--at", f"{at}ms")]
    return [*FERRITE, "--finish", "--format", "json", "--limit", "60", "--lasting", f"{seconds}s", *words]


def lives_on(pid: int) -> bool:
    """Whether it is a process that sends or receives."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"outlast-worker" in command or b"reinit.py" in command


class Looked:
    """What the processes that live on hold, by name: at the beginning, at the end, and the most of each."""

    def __init__(self) -> None:
        self.looks: dict[str, list[dict[str, int]]] = {}

    def look(self, runs: dict[str, int]) -> None:
        for name, run in runs.items():
            # What else these begin, the software device's program for each fault, ends at once.
            for number, pid in enumerate(filter(lives_on, sorted([run, *below(run)]))):
                try:
                    self.looks.setdefault(f"{name}, process {number}", []).append(held(pid))
                except (OSError, KeyError):
                    # It has ended.
                    continue

    def are_kept(self) -> bool:
        """Prints them."""
        for name, looks in self.looks.items():
            most = {what: max(look[what] for look in looks) for what in looks[0]}
            print(f"{name}: {looks[0]} at the beginning, {looks[-1]} at the end, at most {most}")
        return len(self.looks) == 3 and all(is_kept(looks[0], looks[-1]) for looks in self.looks.values())


def killed(environment: dict[str, str], number: int) -> bool:
    """Whether the end that lives on is told of a kill."""
    end = ("sender", "receiver")[number % 2]
    words = ["--fault", f"kill {end}", "--at", f"{300 + 37 * number % 500}ms", "--lasting", "10s", "--limit", "60", "--format", "json"]
    done = subprocess.run([*FERRITE, *words], env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return False
    ends = {one["how"] for one in json.loads(done.stdout.strip().splitlines()[-1])["ends"]}
    return ends == {"killed", "error"}


def told_in_time(run: subprocess.Popen[str], seconds: float) -> str:
    """What `run` has printed, if it ends within so many seconds and those that an end may take; what goes on after that is ended."""
    try:
        return run.communicate(timeout=seconds + ENDING_S)[0].strip()
    except subprocess.TimeoutExpired:
        run.terminate()
        run.communicate()
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Has ports fall, processes stop and die, and connections be made anew for a time.")
    parser.add_argument("minutes", type=float, help="how long, 0.5 to 90")
    seconds = int(parser.parse_args().minutes * 60)
    if not 30 <= seconds <= 90 * 60:
        parser.error("MINUTES: 0.5 to 90 are possible")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="endurance-") as folder:
        environment = os.environ | {"SOFTRNIC_SHM_DIR": folder, "FERRITE_STATS_DIR": folder, "SOFTRNIC_QUIET": "1"}
        begun = time.monotonic()
        stream = subprocess.Popen(falls(seconds), env=environment, stdout=subprocess.PIPE, text=True)
        reinit = [sys.executable, f"{ROOT}/scripts/reinit.py", f"{ROOT}/dist/lib/libnccl-net.so", str(seconds)]
        command = [f"{ROOT}/dist/bin/softrnic", "run", "--", *reinit]
        rounds = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        looked, settled, kills, untold = Looked(), min(SETTLED_S, seconds / 4), 0, 0
        # The pipes are read at the end: what is written there is little.
        while (now := time.monotonic() - begun) < seconds - 5 and stream.poll() is None and rounds.poll() is None:
            if now >= settled:
                looked.look({"stream": stream.pid, "connections made anew": rounds.pid})
            untold += not killed(environment, kills)
            kills += 1
        # Where one has ended before its time, the other is not waited for.
        rest = 0 if stream.poll() is not None or rounds.poll() is not None else seconds - now
        told_stream, told_rounds = told_in_time(stream, rest), told_in_time(rounds, rest)
        # A process that is killed leaves its statistics, of which the newest are kept.
        names = [path.name for path in Path(folder).iterdir()]
        left = [name for name in names if not name.startswith("ferrite-stats.")]
        statistics = len(names) - len(left)
    if not told_stream or not told_rounds:
        silent = "reinit.py" if told_stream else "the stream"
        print(f"endurance.py: {silent} has ended without a result; it went on for {now:.0f} s of {seconds}", file=sys.stderr)
        return 1
    end_of = json.loads(told_stream.splitlines()[-1])
    received = end_of["received"]
    wrong = received["wrong_on_arrival"] + received["wrong_later"]
    print(
        f"{seconds} s: {seconds - 1} falls, {end_of['recoveries']} recoveries, {received['messages']} messages, wrong bytes {wrong}; ",
        end="",
    )
    print(f"{told_rounds.split()[-1]} connections made anew; {kills} kills, {untold} of which not told as they ought to be; ", end="")
    print(f"left in shared memory: {statistics} files of statistics, {', '.join(left) or 'nothing else'}")
    all_kept = looked.are_kept()
    return 0 if all_kept and not (stream.returncode or rounds.returncode or untold or left or statistics > MOST_STATISTICS) else 1


if __name__ == "__main__":
    sys.exit(main())
