"""Compares Ferrite with NCCL's built-in IB transport, or with another Ferrite: per collective and size, with proof of which network ran.

On one machine it starts the ranks itself; under a launcher each of its processes is one rank, and rank 0 has the verdict:

    python scripts/ab.py                        # all GPUs of this machine, RDMA devices of this machine
    python scripts/ab.py --softrnic --ranks 2   # on the software device, on a machine without RDMA
    python scripts/ab.py --libnccl FILE         # without PyTorch, with this libnccl.so.2
    python scripts/ab.py --baseline OLD         # A is Ferrite too, in the file OLD, or with other variables (--only-a)

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST0:29500 scripts/ab.py     # on each node
    srun --nodes 2 --ntasks-per-node 8 python scripts/ab.py
    mpirun -np 16 -H HOST0:8,HOST1:8 -x MASTER_ADDR=HOST0 python scripts/ab.py

    torchrun --nproc-per-node 2 scripts/ab.py --softrnic    # tries that way out, on one machine without RDMA

    python scripts/ab.py --again raw.json       # judges an earlier run once more, with another --effect
    python scripts/ab.py --read A.txt B.txt     # two outputs of nccl-tests that are there already

Each side runs in fresh processes, A B B A, B A A B, and so on. Under a launcher the ranks of run N (from 1) connect to rank 0's host at
TCP port MASTER_PORT + N (MASTER_PORT is 29500 by default): with 7 blocks 28 ports above MASTER_PORT have to be open.

Exit code 0: Ferrite is as good or better. 1: it is worse somewhere, by 3 % or more. 2: the comparison is not valid, or could not be made.
3: too few or too noisy runs to tell. 130: interrupted; the whole blocks that were done are in the report. The program ferrite, which
comes with this one, judges the times as it judges those of `ferrite compare`. report.md, report.svg and raw.json say more.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import exit_codes, files, launch, options, repository
from .evidence import Evidence, check
from .exit_codes import TOO_FEW_RUNS, Invalid
from .launch import OVERRIDDEN, Placement, Setup, run_side
from .networks import Side, built_in, check_plugin, ferrite, gpudirect
from .options import size_text

# -- what is run: collectives, types, sides, and the order of runs --

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


def sides_of(options: argparse.Namespace) -> tuple[Side, Side]:
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


def order_of(blocks: int) -> str:
    """A B B A, B A A B, in turn: what drifts over time hits both sides alike, and each side is first as often."""
    return "".join(("ABBA", "BAAB")[block % 2] for block in range(blocks))


def parse_collectives(text: str) -> list[str]:
    """Of a command line: names with commas between them."""
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in COLLECTIVES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no collective {unknown[0]!r}; there are {', '.join(COLLECTIVES)}")
    return chosen


def calls_in_batch(microseconds: float) -> int:
    """Calls that a batch may have if one takes that long."""
    return max(1, min(MOST_CALLS, int(BATCH_US / max(microseconds, 0.1))))


# -- what the runs of a comparison measured, with the form that it has as JSON --


@dataclass(frozen=True)
class Key:
    """Which row of the report."""

    collective: str
    size: int  # that was asked for
    bytes: int  # that it really has


@dataclass(frozen=True)
class Measured:
    """One row in one run."""

    key: Key
    us: float
    wrong: int  # ranks that saw a wrong value


@dataclass(frozen=True)
class Run:
    """What rank 0 of one run wrote."""

    rows: list[Measured]
    evidence: list[Evidence]
    gpus: list[str]
    versions: dict[str, str]
    seconds: float
    gdr: str

    @classmethod
    def from_json(cls, raw: dict[str, Any], network: str, name: str) -> "Run":
        """Raises Invalid unless the logs prove that it ran on `network`."""
        evidence = [Evidence.from_json(one) for one in raw["evidence"]]
        rows = [Measured(Key(row["collective"], row["size"], row["bytes"]), row["us"], row["wrong"]) for row in raw["rows"]]
        return cls(rows, evidence, raw["gpus"], raw["versions"], raw["seconds"], check(evidence, network, f"run {name}"))


# -- outputs of nccl-tests that are there already: read, and put side by side. One run of each side cannot tell a difference from noise --

# size, count, type, (redop, root,) then out-of-place time, algbw, busbw, #wrong.
NCCL_TESTS_LINE = re.compile(r"^\s*(\d+)\s+\d+\s+\w+(?:\s+\w+)?(?:\s+-?\d+)?\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\d+|N/A)")


def read_nccl_tests(path: Path) -> dict[int, tuple[float, float]]:
    """Time in microseconds and bus bandwidth in GB/s by size in bytes; of several passes the last."""
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror}") from error
    rows = {}
    for line in text.splitlines():
        match = NCCL_TESTS_LINE.match(line)
        if not match:
            continue
        size, time, _, bandwidth, wrong = match.groups()
        if wrong not in ("0", "N/A"):
            raise Invalid(f"{path}: {wrong} wrong values at {size} bytes")
        rows[int(size)] = float(time), float(bandwidth)
    if not rows:
        raise Invalid(f"{path}: no table of nccl-tests in it")
    return rows


def compare_nccl_tests(a: Path, b: Path) -> int:
    """Prints both side by side. Always TOO_FEW_RUNS: without repetitions there is no telling a difference from noise."""
    left, right = read_nccl_tests(a), read_nccl_tests(b)
    common = sorted(left.keys() & right.keys())
    if not common:
        raise Invalid(f"{a} and {b} have no size in common")
    print(f"{'bytes':>8} {'A us':>10} {'B us':>10} {'A GB/s':>8} {'B GB/s':>8} {'B/A time':>9}")
    for size in common:
        (time_a, speed_a), (time_b, speed_b) = left[size], right[size]
        ratio = f"{time_b / time_a:9.3f}" if time_a else f"{'':9}"
        print(f"{size_text(size):>8} {time_a:10.2f} {time_b:10.2f} {speed_a:8.2f} {speed_b:8.2f} {ratio}")
    print("one run of each: no telling a difference from noise; ab.py without --read repeats and tests")
    return TOO_FEW_RUNS


# -- the comparison: all runs in their order, and the report of them --

# What each rank runs: with PyTorch, or with a libnccl.so.2 that it calls itself.
TORCH_RANK = "nccl_net_ferrite.ab_torch_rank"
NCCL_RANK = "nccl_net_ferrite.ab_nccl_rank"


def compare(options: argparse.Namespace) -> int:
    """Returns an exit code."""
    launched = launch.placement_of_launcher()
    sides = sides_of(options)
    order = order_of(options.blocks)
    gpus_here = check_beforehand(options, launched, len(order))
    setup = setup_of(options, launched)
    placements = [launched] if launched else launch.placements_here(options.ranks, gpus_here)
    runs: list[Run] = []
    try:
        run_all(setup, sides, placements, order, runs)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(report_whole_blocks(options, setup, sides, order, runs)) from interrupt
    # Only the process that has rank 0 has results.
    return report_of(options, setup, sides, order, runs) if runs else exit_codes.GOOD


def check_beforehand(options: argparse.Namespace, launched: Placement | None, runs: int) -> int:
    """All that can be known to be wrong before the first run. Returns how many GPUs there are here."""
    files.check_writable(options.out)
    launch.check_softrnic(options.softrnic)
    if options.libnccl and options.dtype != "float32":
        raise Invalid(f"--dtype {options.dtype}: with --libnccl it is float32")
    if launched:
        if options.softrnic:
            launch.check_one_host(launched)
        launch.port_of_run(launched, runs - 1)
    found = gpus_of(options)
    if launched:
        launch.check_master(launched)
    if not launched or launched.rank == 0:
        # It judges at the end.
        repository.program("ferrite")
    return found


def setup_of(options: argparse.Namespace, launched: Placement | None) -> Setup:
    task: dict[str, Any] = {"collectives": options.collectives, "sizes": options.sizes, "dtype": options.dtype}
    if options.libnccl:
        task |= {"libnccl": str(options.libnccl.resolve()), "libcuda": options.libcuda, "limit": options.limit}
    return Setup(
        module=NCCL_RANK if options.libnccl else TORCH_RANK,
        task=task,
        both=(*gpudirect(options.gdr, bool(options.softrnic)), *options.both),
        softrnic=options.softrnic,
        folder=options.out.resolve(),
        limit=options.limit,
        fabric=fabric_of(launched),
    )


def fabric_of(launched: Placement | None) -> str:
    """Name of a software network: the same for all ranks of this comparison, and for no others on this machine."""
    named = os.environ.get("SOFTRNIC_FABRIC") if launched else None
    return named or (f"{os.getuid()}-{launched.port}" if launched else str(os.getpid()))


def gpus_of(options: argparse.Namespace) -> int:
    """How many this machine has; raises Invalid where ranks cannot run at all."""
    if options.libnccl:
        return launch.gpus_seen_by_driver(options.libcuda, options.libnccl)
    return launch.gpus_seen_by_torch("or name a libnccl.so.2 with --libnccl to measure without it")


def run_all(setup: Setup, sides: tuple[Side, Side], placements: list[Placement], order: str, runs: list[Run]) -> None:
    """Every run; adds what rank 0 measured in each to `runs`, nothing where rank 0 is not."""
    begin = time.monotonic()
    for number, letter in enumerate(order):
        side = sides["AB".index(letter)]
        name = f"{number + 1:02}{letter}"
        # Chosen right before it is used: a port that is free now need not be when the last run begins.
        port = launch.port_of_run(placements[0], number) if placements[0].port else launch.free_ports(1)[0]
        raw = run_side(setup, side, [one.at_port(port) for one in placements], name)
        if raw is None:
            continue
        run = Run.from_json(raw, side.network, name)
        refuse_wrong_values(run, name)
        runs.append(run)
        done = time.monotonic() - begin
        left = done / (number + 1) * (len(order) - number - 1)
        print(
            f"run {number + 1} of {len(order)}: {letter} ({side.network}, GPUDirect {run.gdr}) done, about {left:.0f} s left",
            flush=True,
        )


def refuse_wrong_values(run: Run, name: str) -> None:
    wrong = [row.key for row in run.rows if row.wrong]
    if wrong:
        first = f"{wrong[0].collective} of {options.size_text(wrong[0].size)}"
        raise Invalid(f"run {name}: wrong values in {first} and {len(wrong) - 1} other rows")


def report_whole_blocks(options: argparse.Namespace, setup: Setup, sides: tuple[Side, Side], order: str, runs: list[Run]) -> str:
    """Reports the whole blocks that were done, if there are any; says what there is."""
    whole = len(runs) // BLOCK * BLOCK
    done = f"{len(runs)} of {len(order)} runs were done"
    if not whole:
        return f"{done}, too few for a report"
    cut = f"interrupted: {done}, and this report has the first {whole}"
    report_of(options, setup, sides, order[:whole], runs[:whole], cut)
    return f"{done}; {setup.folder / 'report.md'} has the first {whole}"


def report_of(options: argparse.Namespace, setup: Setup, sides: tuple[Side, Side], order: str, runs: list[Run], cut: str = "") -> int:
    """Writes the times of all runs, and has them judged; returns an exit code."""
    raw = setup.folder / "raw.json"
    files.write_json(raw, times_of(options, setup, sides, order, runs, cut))
    return judge(raw, options.out, options.effect)


def judge(times: Path, folder: Path, effect: int) -> int:
    """Has the program ferrite judge the times in such a file, and write the report of them into `folder`; returns its exit code."""
    command: list[str | Path] = [repository.program("ferrite"), "judge", times, "--find", str(effect), "--report", folder]
    sys.stdout.flush()
    code = subprocess.run(command, check=False).returncode
    if code < 0:
        raise Invalid(f"{command[0]} was ended by signal {-code}; the times are in {times}")
    return code


def times_of(options: argparse.Namespace, setup: Setup, sides: tuple[Side, Side], order: str, runs: list[Run], cut: str) -> dict[str, Any]:
    """What `ferrite judge` reads (lab/src/report/times.rs): what A and B are, the side of each run, lines for the report, and for
    each row the microseconds of a call in each run of A (a_us) and of B (b_us), in their order."""
    first, gdr = runs[0], gdr_of(runs, order)
    plugin, baseline = files.library(options.plugin), files.library(options.baseline) if options.baseline else None
    libnccl = files.library(options.libnccl) if options.libnccl else None
    side_a = "another Ferrite" if baseline else f"NCCL {first.versions['nccl']}'s built-in IB transport"
    variables = variables_of(setup, sides)
    facts = [
        f"command: `{' '.join(sys.argv)}`; type: {setup.task['dtype']}",
        f"versions: {', '.join(f'{name} {version}' for name, version in first.versions.items())}",
        f"ranks: {'; '.join(first.gpus)}",
        *([f"libnccl.so.2: sha256 `{libnccl.sha256}`, without PyTorch"] if libnccl else []),
        *([f"plugin of A: {baseline.text()}"] if baseline else []),
        f"plugin{' of B' if baseline else ''}: {plugin.text()}",
        *(
            f"variables of {side}: " + (" ".join(f"`{name}={value}`" for name, value in sorted(chosen.items())) or "none")
            for side, chosen in variables.items()
        ),
        f"seconds of each run: {' '.join(str(round(run.seconds, 1)) for run in runs)}",
        *(["on the software device, both ends on one machine: no statement about a network card"] if options.softrnic else []),
    ]
    ranks = len(first.gpus)
    keys = [row.key for row in first.rows]
    of_side = [[run for run, letter in zip(runs, order) if letter == side] for side in "AB"]
    return {
        "schema": "ferrite-times/1",
        "title": f"Ferrite against {side_a}, {ranks} ranks, GPUDirect {gdr}",
        "a": side_a,
        "b": "Ferrite",
        "order": order,
        "notes": [f"The run was {cut}"] if cut else [],
        "facts": facts,
        "about": {
            "versions": first.versions,
            "plugin": asdict(plugin),
            "baseline": asdict(baseline) if baseline else None,
            "libnccl": asdict(libnccl) if libnccl else None,
            "variables": variables,
            "gdr": gdr,
            "gpus": first.gpus,
            "evidence": [[asdict(one) for one in run.evidence] for run in runs],
        },
        "rows": [
            {
                **asdict(key),
                "bus": COLLECTIVES[key.collective](ranks),
                "a_us": [run.rows[place].us for run in of_side[0]],
                "b_us": [run.rows[place].us for run in of_side[1]],
            }
            for place, key in enumerate(keys)
        ],
    }


def gdr_of(runs: list[Run], order: str) -> str:
    """The one GPUDirect state of all runs."""
    states = {letter: {run.gdr for run, side in zip(runs, order) if side == letter} for letter in "AB"}
    if states["A"] != states["B"] or len(states["A"]) != 1:
        raise Invalid(f"GPUDirect differs: A {sorted(states['A'])}, B {sorted(states['B'])}; --gdr on or off makes it the same")
    return states["A"].pop()


def variables_of(setup: Setup, sides: tuple[Side, Side]) -> dict[str, dict[str, str]]:
    """The variables that make the sides, and those of NCCL that both inherit."""
    inherited = {name: value for name, value in os.environ.items() if name.startswith("NCCL_") and name not in OVERRIDDEN}
    return {"A": dict(sides[0].variables), "B": dict(sides[1].variables), "both": inherited | dict(setup.both)}


def arguments() -> argparse.Namespace:
    parser = options.parser(__doc__)
    parser.add_argument("--plugin", type=Path, default=repository.PLUGIN, help="side B's library")
    parser.add_argument("--baseline", type=Path, metavar="PLUGIN", help="side A: this library of Ferrite instead of NCCL's own transport")
    parser.add_argument("--libnccl", type=Path, metavar="FILE", help="measure this libnccl.so.2, called by itself, and not PyTorch's")
    parser.add_argument("--libcuda", default="libcuda.so.1", metavar="FILE", help="the CUDA driver for --libnccl; default libcuda.so.1")
    parser.add_argument(
        "--collectives",
        type=parse_collectives,
        default=list(COLLECTIVES),
        metavar="NAME,NAME",
        help="of " + ", ".join(COLLECTIVES),
    )
    parser.add_argument(
        "--sizes",
        type=options.parse_sizes,
        default=options.parse_sizes("8..1G"),
        metavar="A..B|A,B,C",
        help="bytes, such as 8..64M (every fourth power of 2) or 8,4K,1M; default 8..1G",
    )
    parser.add_argument(
        "--blocks",
        type=options.number(1, 20),
        default=7,
        help="of four runs, two of each side; default 7; with less than 6 nothing can be told",
    )
    parser.add_argument(
        "--effect",
        type=options.number(3, 1000),
        default=10,
        metavar="PERCENT",
        help="a difference that must not be missed; default 10",
    )
    parser.add_argument("--ranks", type=options.number(2, 64), help="on one machine; default: its GPUs, at least 2")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    options.add_gdr(parser, "GPUDirect on both sides")
    options.add_both(parser, "both sides")
    for side in "ab":
        parser.add_argument(
            f"--only-{side}",
            type=options.variable,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"a variable for side {side.upper()} alone",
        )
    options.add_softrnic(parser, "both sides on the software device in DIR; all ranks on one machine")
    options.add_limit(parser, 10, 900, "one run of one side")
    options.add_out(parser, "report-ab")
    parser.add_argument("--again", type=Path, metavar="FILE", help="a raw.json to judge once more, into --out")
    parser.add_argument("--read", nargs=2, type=Path, metavar=("A", "B"), help="outputs of nccl-tests to compare instead")
    return parser.parse_args()


def run(chosen: argparse.Namespace) -> int:
    if chosen.read:
        return compare_nccl_tests(*chosen.read)
    if chosen.again:
        files.check_writable(chosen.out)
        return judge(chosen.again, chosen.out, chosen.effect)
    return compare(chosen)


def main() -> int:
    chosen = arguments()
    return exit_codes.of_program(lambda: run(chosen))
