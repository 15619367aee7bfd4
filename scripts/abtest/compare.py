"""The comparison: all runs in their order, and what they prove."""

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

from . import conclude, evidence, plan, probe, stats
from . import run as runs
from .ending import GOOD
from .plan import Invalid, Side
from .seat import Seat, check_one_host, free_ports, of_launcher, port_of

NCCL_WORKER = Path(__file__).resolve().parent.parent / "nccltest" / "timing.py"


def run(options: argparse.Namespace) -> int:
    """Compares; returns a code of ending.py."""
    launched = of_launcher()
    sides = plan.sides(options.plugin, options.only_b)
    check(options, launched)
    task = {"collectives": options.collectives, "sizes": options.sizes, "dtype": options.dtype}
    if options.libnccl:
        task |= {"libnccl": str(options.libnccl.resolve()), "libcuda": options.libcuda, "limit": options.limit}
    both = (*gdr_settings(options), *options.both)
    order = plan.order(options.blocks)
    seats = [launched] if launched else local_seats(options.ranks, gpus(options))
    setup = runs.Setup(task, both, options.softrnic, options.out.resolve(), options.limit, fabric_of(launched))
    results: list[dict] = []
    try:
        all_runs(setup, sides, seats, order, results)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(partial(options, setup, sides, order, results)) from interrupt
    # Rank 0 has the verdict.
    return report_of(options, setup, sides, order, results) if results else GOOD


def check(options: argparse.Namespace, launched: Seat | None) -> None:
    """All that can be known to be wrong before the first run."""
    probe.writable(options.out)
    probe.softrnic(options.softrnic)
    if options.libnccl and options.dtype != "float32":
        raise Invalid(f"--dtype {options.dtype}: with --libnccl it is float32")
    if launched:
        if options.softrnic:
            check_one_host(launched)
        port_of(launched, len(plan.order(options.blocks)) - 1)


def gdr_settings(options: argparse.Namespace) -> list[tuple[str, str]]:
    """The same GPUDirect for both sides, if it is asked for."""
    if options.gdr == "as-is":
        return []
    level = "SYS" if options.gdr == "on" else "LOC"
    device = [("SOFTRNIC_GPU", "dmabuf" if options.gdr == "on" else "none")] if options.softrnic else []
    return [("NCCL_NET_GDR_LEVEL", level), *device]


def gpus(options: argparse.Namespace) -> int:
    """How many this machine has, for whatever is to be measured; finds out whether ranks can run at all."""
    if options.libnccl:
        return probe.gpus_of_driver(options.libcuda, options.libnccl)
    return probe.gpus_of_torch("or name a libnccl.so.2 with --libnccl to measure without it")


def local_seats(ranks: int | None, found: int) -> list[Seat]:
    """Of ranks on this machine, which has `found` GPUs."""
    ranks = ranks or max(2, found)
    return [Seat(rank, ranks, rank, "127.0.0.1", 0) for rank in range(ranks)]


def fabric_of(launched: Seat | None) -> str:
    """Name of a software network: what ranks of the same comparison have in common, and no others on this machine."""
    return f"{os.getuid()}-{launched.port}" if launched else str(os.getpid())


def all_runs(setup: runs.Setup, sides: tuple[Side, Side], seats: list[Seat], order: str, results: list[dict]) -> None:
    """Every run; adds to `results` what rank 0 measured in each, nothing where rank 0 is not."""
    worker = NCCL_WORKER if "libnccl" in setup.task else None
    begin = time.monotonic()
    for number, letter in enumerate(order):
        side = sides["AB".index(letter)]
        name = f"{number + 1:02}{letter}"
        # Looked for right before it is taken: what is free now need not be when the last run begins.
        port = port_of(seats[0], number) if seats[0].port else free_ports(1)[0]
        placed = [Seat(s.rank, s.world, s.local_rank, s.master, port) for s in seats]
        result = runs.go(setup, side, placed, name, worker)
        if result is None:
            continue
        result["gdr"] = evidence.check(result["evidence"], side.network, f"run {name}")
        refuse_wrong(result, name)
        results.append(result)
        done = time.monotonic() - begin
        left = done / (number + 1) * (len(order) - number - 1)
        print(f"run {number + 1} of {len(order)}: {letter} ({side.network}, GPUDirect {result['gdr']}) done, "
              f"about {left:.0f} s left", flush=True)


def refuse_wrong(result: dict, name: str) -> None:
    wrong = [row for row in result["rows"] if row["wrong"]]
    if wrong:
        row = wrong[0]
        raise Invalid(f"run {name}: wrong values in {row['collective']} of {plan.text_of(row['size'])} "
                      f"and {len(wrong) - 1} other rows")


def partial(options, setup: runs.Setup, sides: tuple[Side, Side], order: str, results: list[dict]) -> str:
    """A report of the whole blocks that were done, if there are any; says what there is."""
    whole = len(results) // stats.BLOCK * stats.BLOCK
    done = f"{len(results)} of {len(order)} runs were done"
    if not whole:
        return f"{done}, too few for a report"
    cut = f"interrupted: {done}, and this report has the first {whole}"
    report_of(options, setup, sides, order[:whole], results[:whole], cut)
    return f"{done}; {setup.folder / 'report.md'} has the first {whole}"


def report_of(options, setup: runs.Setup, sides: tuple[Side, Side], order: str, results: list[dict], cut: str = "") -> int:
    keys, times, gdr = conclude.about_times(results, order)
    about = {
        "command": " ".join(sys.argv), "order": order, "gdr": gdr, "versions": results[0]["versions"],
        "gpus": results[0]["gpus"], "plugin": digest(options.plugin), "variables": differing(setup, sides),
        "ranks": len(results[0]["gpus"]), "dtype": setup.task["dtype"], "cut": cut,
        "libnccl": digest(options.libnccl) if options.libnccl else None,
        "softrnic": str(options.softrnic) if options.softrnic else None, "evidence": [r["evidence"] for r in results],
        "seconds": [round(r["seconds"], 1) for r in results],
    }
    return conclude.conclude(setup.folder, about, keys, times, options.effect / 100)


def digest(path: Path) -> dict:
    return {"path": str(path.resolve()), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def differing(setup: runs.Setup, sides: tuple[Side, Side]) -> dict:
    """The variables that make the sides, and those of NCCL that both inherit."""
    inherited = {k: v for k, v in os.environ.items() if k.startswith("NCCL_") and k not in runs.OURS}
    return {"A": dict(sides[0].variables), "B": dict(sides[1].variables), "both": inherited | dict(setup.both)}
