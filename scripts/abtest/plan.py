"""What is run: sides, collectives, sizes, and in which order."""

import argparse
from dataclasses import dataclass
from pathlib import Path


class Invalid(Exception):
    """The comparison cannot be made, or proves nothing. The text says why."""


# Bus bandwidth over algorithm bandwidth, for n ranks: what a link really carries.
COLLECTIVES = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "send_recv": lambda n: 1.0,
}

# Bytes of an element.
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8, "uint8": 1}

SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


# How long a timed batch of calls takes, about, in microseconds; its most calls; batches of each size. Short: what differs from one
# run to the next outweighs what differs within one, and only more runs tell that apart from a difference.
BATCH_US = 20_000
MOST_CALLS = 200
BATCHES = 5


@dataclass(frozen=True)
class Side:
    """One of the two networks."""

    name: str  # "A" or "B"
    network: str  # as NCCL's log names it
    variables: tuple[tuple[str, str], ...]


def sides(plugin: Path, only_b: list[tuple[str, str]]) -> tuple[Side, Side]:
    """A: NCCL's built-in IB transport; B: the plugin. NCCL_NET forces each: NCCL fails rather than take another."""
    if not plugin.is_file():
        raise Invalid(f"--plugin {plugin}: no such file; scripts/build.sh makes it")
    stock = (("NCCL_NET", "IB"), ("NCCL_NET_PLUGIN", "none"))
    ferrite = (("NCCL_NET", "Ferrite"), ("NCCL_NET_PLUGIN", str(plugin.resolve())))
    return Side("A", "IB", stock), Side("B", "Ferrite", ferrite + tuple(only_b))


def order(blocks: int) -> str:
    """A B B A, B A A B, in turn: what drifts over time hits both sides alike, and each side is first as often."""
    return "".join(("ABBA", "BAAB")[block % 2] for block in range(blocks))


def names(text: str) -> list[str]:
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in COLLECTIVES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no collective {unknown[0]!r}; there are {', '.join(COLLECTIVES)}")
    return chosen


def size(text: str) -> int:
    digits = text.rstrip("KMG")
    suffix = text[len(digits):]
    if not digits.isdigit() or suffix not in SUFFIXES or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 8, 4K, 1M or 1G")
    return int(digits) * SUFFIXES[suffix]


def sizes(text: str) -> list[int]:
    """Sizes in bytes: a list, or a range in steps of four, both ends included."""
    first, dots, last = text.partition("..")
    if not dots:
        return sorted({size(part) for part in text.split(",")})
    low, high = size(first), size(last)
    if low > high:
        raise argparse.ArgumentTypeError(f"{text!r}: the first size must not be above the last")
    found = []
    while low < high:
        found.append(low)
        low *= 4
    return [*found, high]


def count(low: int, high: int):
    def parse(text: str) -> int:
        if not text.isdigit() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} must be a number from {low} to {high}")
        return int(text)

    return parse


def setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=VALUE")
    return name, value


def text_of(size_in_bytes: int) -> str:
    """8, 4K, 1M."""
    for suffix, factor in reversed(SUFFIXES.items()):
        if size_in_bytes % factor == 0:
            return f"{size_in_bytes // factor}{suffix}"
    return str(size_in_bytes)


def bus_bandwidth(key: tuple[str, int, int], microseconds: float, ranks: int) -> float:
    """GB/s that a link carried, as nccl-tests defines it."""
    collective, _, size = key
    return size / microseconds / 1000 * COLLECTIVES[collective](ranks)
