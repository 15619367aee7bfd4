"""Outputs of nccl-tests that are there already: read, and put side by side. One run of each side cannot tell a difference from noise."""

import re
from pathlib import Path

from ..errors import Invalid
from ..exit_codes import TOO_FEW_RUNS
from ..sizes import text_of

# size, count, type, (redop, root,) then out-of-place time, algbw, busbw, #wrong.
LINE = re.compile(r"^\s*(\d+)\s+\d+\s+\w+(?:\s+\w+)?(?:\s+-?\d+)?\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\d+|N/A)")


def read(path: Path) -> dict[int, tuple[float, float]]:
    """Time in microseconds and bus bandwidth in GB/s by size in bytes; of several passes the last."""
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror}") from error
    rows = {}
    for line in text.splitlines():
        match = LINE.match(line)
        if not match:
            continue
        size, time, _, bandwidth, wrong = match.groups()
        if wrong not in ("0", "N/A"):
            raise Invalid(f"{path}: {wrong} wrong values at {size} bytes")
        rows[int(size)] = float(time), float(bandwidth)
    if not rows:
        raise Invalid(f"{path}: no table of nccl-tests in it")
    return rows


def compare(a: Path, b: Path) -> int:
    """Prints both side by side. Always TOO_FEW_RUNS: without repetitions there is no telling a difference from noise."""
    left, right = read(a), read(b)
    common = sorted(left.keys() & right.keys())
    if not common:
        raise Invalid(f"{a} and {b} have no size in common")
    print(f"{'bytes':>8} {'A us':>10} {'B us':>10} {'A GB/s':>8} {'B GB/s':>8} {'B/A time':>9}")
    for size in common:
        (time_a, speed_a), (time_b, speed_b) = left[size], right[size]
        ratio = f"{time_b / time_a:9.3f}" if time_a else f"{'':9}"
        print(f"{text_of(size):>8} {time_a:10.2f} {time_b:10.2f} {speed_a:8.2f} {speed_b:8.2f} {ratio}")
    print("one run of each: no telling a difference from noise; ab.py without --read repeats and tests")
    return TOO_FEW_RUNS
