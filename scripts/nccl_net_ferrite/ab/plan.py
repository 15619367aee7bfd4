"""What is run: collectives, types, sides, and the order of runs."""

import argparse
from collections.abc import Callable

from .. import files
from ..errors import Invalid
from ..networks import Side, built_in, check_plugin, ferrite

# Bus bandwidth over algorithm bandwidth, for n ranks, as nccl-tests defines it: the part of the bytes that a link really carries.
COLLECTIVES: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "send_recv": lambda _: 1.0,
}
# Those whose buffers are split into a part for each rank.
SPLIT = ("all_gather", "reduce_scatter", "alltoall")

# Bytes of an element.
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8, "uint8": 1}

# How long a timed batch of calls takes, about, in microseconds; its most calls; batches of each size. Short: what differs from one
# run to the next outweighs what differs within one, and only more runs tell that apart from a difference.
BATCH_US = 20_000
MOST_CALLS = 200
BATCHES = 5


def sides(options: argparse.Namespace) -> tuple[Side, Side]:
    """A: NCCL's built-in IB transport, or the plugin of --baseline; B: the plugin. Each with the variables that it alone has."""
    if not options.baseline:
        return built_in("A", options.only_a), ferrite("B", options.plugin, options.only_b)
    check_plugin(options.baseline, "--baseline")
    a, b = ferrite("A", options.baseline, options.only_a), ferrite("B", options.plugin, options.only_b)
    if files.sha256(options.baseline) == files.sha256(options.plugin) and sorted(options.only_a) == sorted(options.only_b):
        raise Invalid(
            f"--baseline {options.baseline}: A and B are the same; name another library, or a variable of one side (--only-a, --only-b)"
        )
    return a, b


# Runs of a block.
BLOCK = 4


def order(blocks: int) -> str:
    """A B B A, B A A B, in turn: what drifts over time hits both sides alike, and each side is first as often."""
    return "".join(("ABBA", "BAAB")[block % 2] for block in range(blocks))


def collectives(text: str) -> list[str]:
    """Of a command line: names with commas between them."""
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in COLLECTIVES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no collective {unknown[0]!r}; there are {', '.join(COLLECTIVES)}")
    return chosen


def calls_in_batch(microseconds: float) -> int:
    """Calls that a batch may have if one takes that long."""
    return max(1, min(MOST_CALLS, int(BATCH_US / microseconds)))
