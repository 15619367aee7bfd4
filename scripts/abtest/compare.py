"""The comparison: all runs in their order, what they prove, the verdict."""

import argparse
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

from . import evidence, plan, report, stats
from . import run as runs
from .plan import Invalid, Side
from .seat import Seat, free_ports, of_launcher


def run(options: argparse.Namespace) -> int:
    """Compares; 0, 1 or 2 as scripts/ab.py promises."""
    launched = of_launcher()
    if options.softrnic and launched:
        raise Invalid("--softrnic is for one machine: start ab.py by hand")
    options.out.mkdir(parents=True, exist_ok=True)
    sides = plan.sides(options.plugin, options.only_b)
    both = (*gdr_settings(options), *options.both)
    task = {"collectives": options.collectives, "sizes": options.sizes, "dtype": options.dtype}
    setup = runs.Setup(task, both, options.softrnic, options.out.resolve(), options.limit)
    order = plan.order(options.blocks)
    seats = [launched] if launched else local_seats(options)
    results = all_runs(setup, sides, seats, order, bool(launched))
    if not results:
        return 0  # Rank 0 has the verdict.
    return conclude(options, setup, sides, order, results)


def gdr_settings(options: argparse.Namespace) -> list[tuple[str, str]]:
    """The same GPUDirect for both sides, if it is asked for."""
    if options.gdr == "as-is":
        return []
    level = "SYS" if options.gdr == "on" else "LOC"
    device = [("SOFTRNIC_GPU", "dmabuf" if options.gdr == "on" else "none")] if options.softrnic else []
    return [("NCCL_NET_GDR_LEVEL", level), *device]


def local_seats(options: argparse.Namespace) -> list[Seat]:
    ranks = options.ranks or max(2, count_gpus())
    return [Seat(rank, ranks, rank, "127.0.0.1", 0) for rank in range(ranks)]


def count_gpus() -> int:
    found = subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"],
                           capture_output=True, text=True, check=False)
    if found.returncode or not found.stdout.strip().isdigit():
        raise Invalid(f"this Python has no usable torch: {found.stderr.strip().splitlines()[-1:] or found.stdout}")
    count = int(found.stdout)
    if count == 0:
        raise Invalid("torch sees no GPU on this machine")
    return count


def all_runs(setup: runs.Setup, sides: tuple[Side, Side], seats: list[Seat], order: str, is_launched: bool) -> list[dict]:
    """Every run; what rank 0 measured in each, nothing where rank 0 is not."""
    ports = [seats[0].port + 1 + number for number in range(len(order))] if is_launched else free_ports(len(order))
    results = []
    begin = time.monotonic()
    for number, letter in enumerate(order):
        side = sides["AB".index(letter)]
        name = f"{number + 1:02}{letter}"
        placed = [Seat(s.rank, s.world, s.local_rank, s.master, ports[number]) for s in seats]
        result = runs.go(setup, side, placed, name)
        if result is None:
            continue
        result["gdr"] = evidence.check(result["evidence"], side.network, f"run {name}")
        refuse_wrong(result, name)
        results.append(result)
        done = time.monotonic() - begin
        left = done / (number + 1) * (len(order) - number - 1)
        print(f"run {number + 1} of {len(order)}: {letter} ({side.network}, GPUDirect {result['gdr']}) done, "
              f"about {left:.0f} s left", flush=True)
    return results


def refuse_wrong(result: dict, name: str) -> None:
    wrong = [row for row in result["rows"] if row["wrong"]]
    if wrong:
        row = wrong[0]
        raise Invalid(f"run {name}: wrong values in {row['collective']} of {plan.text_of(row['size'])} "
                      f"and {len(wrong) - 1} other rows")


def conclude(options, setup: runs.Setup, sides: tuple[Side, Side], order: str, results: list[dict]) -> int:
    """Statistics, report, exit code."""
    gdr = {letter: {result["gdr"] for result, side in zip(results, order) if side == letter} for letter in "AB"}
    if gdr["A"] != gdr["B"] or len(gdr["A"]) != 1:
        raise Invalid(f"GPUDirect differs: A {sorted(gdr['A'])}, B {sorted(gdr['B'])}; --gdr on or off makes it the same")
    keys = [(row["collective"], row["size"], row["bytes"]) for row in results[0]["rows"]]
    times = {letter: [[row["us"] for row in result["rows"]] for result, side in zip(results, order) if side == letter]
             for letter in "AB"}
    rows = [stats.row([r[i] for r in times["A"]], [r[i] for r in times["B"]]) for i in range(len(keys))]
    said = stats.verdicts(rows)
    about = {
        "command": " ".join(sys.argv), "order": order, "gdr": gdr["A"].pop(), "versions": results[0]["versions"],
        "gpus": results[0]["gpus"], "plugin": digest(options.plugin), "variables": differing(setup, sides),
        "ranks": len(results[0]["gpus"]), "dtype": setup.task["dtype"],
        "softrnic": str(options.softrnic) if options.softrnic else None, "evidence": [r["evidence"] for r in results],
    }
    report.write(setup.folder, about, keys, rows, said, times)
    print(report.summary(about, keys, rows, said))
    print(f"report: {setup.folder / 'report.md'}")
    return 1 if "worse" in said else 0


def digest(path: Path) -> dict:
    return {"path": str(path.resolve()), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def differing(setup: runs.Setup, sides: tuple[Side, Side]) -> dict:
    """The variables that make the sides, and those of NCCL that both inherit."""
    inherited = {k: v for k, v in os.environ.items() if k.startswith("NCCL_") and k not in runs.OURS}
    return {"A": dict(sides[0].variables), "B": dict(sides[1].variables), "both": inherited | dict(setup.both)}
