#!/usr/bin/env python3
"""Has the only port of a connection fall again and again, and tells what the two processes hold at the beginning and at the end.

    flaps.py [COUNT]

    scripts/flaps.py 800       # four minutes

`ferrite outlast` sends checked messages; every 300 ms the sender's port is down for 20 ms. It uses dist/, which scripts/build.sh makes.
The exit status is 1 if a message is missing or wrong, or if a process holds more files or threads at the end than at the beginning, or
an eighth more memory.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVERY, DOWN, FIRST = 300, 20, 1000
# By then all memory of the first recoveries has been allocated.
SETTLED_S = 10
LEAST = 40


def below(pid: int) -> list[int]:
    """The processes that `pid` has begun, and those that they have."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            begun = [int(child) for child in children.read_text().split()]
        except OSError:
            # The thread has ended.
            continue
        for child in begun:
            found += [child, *below(child)]
    return found


def held(pid: int) -> dict[str, int]:
    """What a process holds."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "KiB": int(status["VmRSS"].split()[0]),
        "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": int(status["Threads"]),
    }


def look(pid: int, seen: dict[int, list[dict[str, int]]]) -> None:
    for worker in below(pid):
        try:
            if b"outlast-worker" in Path(f"/proc/{worker}/cmdline").read_bytes():
                seen.setdefault(worker, []).append(held(worker))
        except (OSError, KeyError):
            # It has ended.
            continue


def is_kept(first: dict[str, int], last: dict[str, int]) -> bool:
    return last["files"] <= first["files"] and last["threads"] <= first["threads"] and last["KiB"] * 8 <= first["KiB"] * 9


def main() -> int:
    parser = argparse.ArgumentParser(description="Has the only port of a connection fall again and again.")
    parser.add_argument("count", nargs="?", type=int, default=800, help="how often, 40 or more [default: %(default)s]")
    count = parser.parse_args().count
    if count < LEAST:
        parser.error(f"COUNT is {count}; {LEAST} or more are possible, so that the processes can be looked at")
    end = FIRST + count * EVERY
    command = [f"{ROOT}/dist/bin/ferrite", "outlast", "--plugin", f"{ROOT}/dist/lib/libnccl-net.so", "--finish", "--format", "json"]
    command += ["--lasting", f"{end // 1000 + 2}s"]
    for at in range(FIRST, end, EVERY):
        command += ["--fault", "port softrnic0/1 down", "--at", f"{at}ms", "--fault", "port softrnic0/1 up", "--at", f"{at + DOWN}ms"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    seen: dict[int, list[dict[str, int]]] = {}
    time.sleep(SETTLED_S)
    before = (end / 1000 - SETTLED_S) / 8
    # The pipe is read at the end: what is written there is one line.
    while run.poll() is None and before > 0 and len(next(iter(seen.values()), [])) < 8:
        look(run.pid, seen)
        time.sleep(before)
    said, _ = run.communicate()
    end_of = json.loads(said.strip().splitlines()[-1])
    received = end_of["received"]
    print(f"{count} falls, {end_of['recoveries']} recoveries, {received['messages']} messages, ", end="")
    print(f"longest gap {received['longest_gap_ms']:.0f} ms, wrong bytes {received['wrong_on_arrival'] + received['wrong_later']}")
    for name, looks in zip(("sender", "receiver"), seen.values(), strict=False):
        print(f"{name}: {looks[0]} at the beginning, {looks[-1]} at the end")
    all_kept = len(seen) == 2 and all(is_kept(looks[0], looks[-1]) for looks in seen.values())
    return 0 if run.returncode == 0 and all_kept else 1


if __name__ == "__main__":
    sys.exit(main())
