"""The comparison: all runs in their order, and the report of them."""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import exit_codes, files, repository, sizes
from ..errors import Invalid
from ..launch import gpus, placement, softrnic
from ..launch.placement import Placement
from ..launch.side_run import OVERRIDDEN, Setup, run_side
from ..networks import Side, gpudirect
from . import plan
from .results import Run

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
    whole = len(runs) // plan.BLOCK * plan.BLOCK
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
    """What `ferrite judge` reads (tools/ferrite/src/report/times.rs): what A and B are, the side of each run, lines for the report, and for
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
                "bus": plan.COLLECTIVES[key.collective](ranks),
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
