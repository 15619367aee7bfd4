#!/usr/bin/env python3
"""Whose memory a communicator takes: the transport's or the software device's, from two files of valgrind's dhat.

usage: scripts/heap.py FEW MANY COMMUNICATORS

FEW and MANY are what `valgrind --tool=dhat --trace-children=yes --dhat-out-file=FILE ferrite solo ... --connections N --hold` wrote for two
numbers of connections; COMMUNICATORS is how many more there were in MANY, two for each connection. What was on the heap when most was is
counted for the first library that its caller is in, from inside out. Shared memory and mapped files are not in it.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

DEVICE, TRANSPORT = "device", "transport"
# Parts of a line of a call stack, and whose it is; NCCL's own lines name no library.
OWNERS = [("libibverbs", DEVICE), ("libnccl", TRANSPORT), ("nccl", TRANSPORT)]


def owner(stack: list[str]) -> tuple[str, str]:
    """Whose an allocation is, and its line there."""
    for line in stack:
        for part, name in OWNERS:
            if part in line:
                return name, line.split(": ", 1)[-1]
    return "other", stack[0]


def heap(told: dict[str, Any]) -> Counter[tuple[str, str]]:
    """Bytes by owner and line, when most was on the heap."""
    lines, sums = told["ftbl"], Counter[tuple[str, str]]()
    for point in told["pps"]:
        sums[owner([lines[index] for index in point["fs"]])] += point["gb"]
    return sums


def report(few: dict[str, Any], many: dict[str, Any], communicators: int) -> str:
    """The text for two files."""
    more = heap(many)
    more.subtract(heap(few))
    owners = Counter[str]()
    for (name, _), size in more.items():
        owners[name] += size
    rows = [f"{size / communicators:9.0f} B  {name}" for name, size in owners.most_common()]
    rows += [f"{size / communicators:9.0f} B  {name}: {line}" for (name, line), size in more.most_common(12)]
    return "\n".join(rows)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    print(report(*(json.loads(Path(file).read_text()) for file in sys.argv[1:3]), int(sys.argv[3])))
