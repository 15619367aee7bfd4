"""The comparison: all runs in their order, and the report of them."""

import argparse
import os
import sys
import time
from typing import Any

from .. import exit_codes, files, sizes
from ..errors import Invalid
from ..launch import gpus, placement, softrnic
from ..launch.placement import Placement
from ..launch.side_run import OVERRIDDEN, Setup, run_side
from ..networks import Side, gpudirect
from . import judgement, plan, stats
from .results import About, Run

# What each rank runs: with PyTorch, or with a libnccl.so.2 that it calls itself.
TORCH_RANK = "nccl_net_ferrite.ab.torch_rank"
NCCL_RANK = "nccl_net_ferrite.ab.nccl_rank"


def compare(options: argparse.Namespace) -> int:
    """Returns an exit code."""
    launched = placement.of_launcher()
    sides = plan.sides(options)
    order = plan.order(options.blocks)
    gpus_here = check(options, launched, len(order))
    setup = setup_of(options, launched)
    placements = [launched] if launched else placement.on_this_machine(options.ranks, gpus_here)
    runs: list[Run] = []
    try:
        run_all(setup, sides, placements, order, runs)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(report_whole_blocks(options, setup, sides, order, runs)) from interrupt
    # Only the process that has rank 0 has results.
    return report_of(options, setup, sides, order, runs) if runs else exit_codes.GOOD


def check(options: argparse.Namespace, launched: Placement | None, runs: int) -> int:
    """All that can be known to be wrong before the first run. Returns how many GPUs there are here."""
    files.check_writable(options.out)
    softrnic.check(options.softrnic)
    if options.libnccl and options.dtype != "float32":
        raise Invalid(f"--dtype {options.dtype}: with --libnccl it is float32")
    if launched:
        if options.softrnic:
            placement.check_one_host(launched)
        placement.port_of_run(launched, runs - 1)
    found = gpus_of(options)
    if launched:
        placement.check_master(launched)
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
        return gpus.seen_by_driver(options.libcuda, options.libnccl)
    return gpus.seen_by_torch("or name a libnccl.so.2 with --libnccl to measure without it")


def run_all(setup: Setup, sides: tuple[Side, Side], placements: list[Placement], order: str, runs: list[Run]) -> None:
    """Every run; adds what rank 0 measured in each to `runs`, nothing where rank 0 is not."""
    begin = time.monotonic()
    for number, letter in enumerate(order):
        side = sides["AB".index(letter)]
        name = f"{number + 1:02}{letter}"
        # Chosen right before it is used: a port that is free now need not be when the last run begins.
        port = placement.port_of_run(placements[0], number) if placements[0].port else placement.free_ports(1)[0]
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
        first = f"{wrong[0].collective} of {sizes.text_of(wrong[0].size)}"
        raise Invalid(f"run {name}: wrong values in {first} and {len(wrong) - 1} other rows")


def report_whole_blocks(options: argparse.Namespace, setup: Setup, sides: tuple[Side, Side], order: str, runs: list[Run]) -> str:
    """Reports the whole blocks that were done, if there are any; says what there is."""
    whole = len(runs) // stats.BLOCK * stats.BLOCK
    done = f"{len(runs)} of {len(order)} runs were done"
    if not whole:
        return f"{done}, too few for a report"
    cut = f"interrupted: {done}, and this report has the first {whole}"
    report_of(options, setup, sides, order[:whole], runs[:whole], cut)
    return f"{done}; {setup.folder / 'report.md'} has the first {whole}"


def report_of(options: argparse.Namespace, setup: Setup, sides: tuple[Side, Side], order: str, runs: list[Run], cut: str = "") -> int:
    about = About(
        command=" ".join(sys.argv),
        order=order,
        gdr=judgement.gdr_of(runs, order),
        versions=runs[0].versions,
        gpus=runs[0].gpus,
        plugin=files.library(options.plugin),
        baseline=files.library(options.baseline) if options.baseline else None,
        variables=variables_of(setup, sides),
        ranks=len(runs[0].gpus),
        dtype=setup.task["dtype"],
        cut=cut,
        libnccl=files.library(options.libnccl) if options.libnccl else None,
        softrnic=str(options.softrnic) if options.softrnic else None,
        evidence=[run.evidence for run in runs],
        seconds=[round(run.seconds, 1) for run in runs],
        effect=options.effect / 100,
    )
    keys, times = judgement.times_of(runs)
    return judgement.judge_and_report(setup.folder, about, keys, times)


def variables_of(setup: Setup, sides: tuple[Side, Side]) -> dict[str, dict[str, str]]:
    """The variables that make the sides, and those of NCCL that both inherit."""
    inherited = {name: value for name, value in os.environ.items() if name.startswith("NCCL_") and name not in OVERRIDDEN}
    return {"A": dict(sides[0].variables), "B": dict(sides[1].variables), "both": inherited | dict(setup.both)}
