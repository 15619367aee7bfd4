"""The trainings, one after the other, and the report of them."""

import argparse
import os
import sys

from .. import exit_codes, files
from ..errors import Invalid
from ..launch import gpus, placement, softrnic
from ..launch.side_run import Setup, run_side
from ..networks import Side, Variables, built_in, ferrite, gpudirect, sockets
from . import curves, report
from .results import About, Report, Run

# What each rank runs.
RANK = "nccl_net_ferrite.ddp.rank"


def compare(options: argparse.Namespace) -> int:
    """Trains over each network and compares; returns an exit code."""
    # The built-in comes twice: a difference between its two runs is not the network's.
    sides = [built_in("built-in"), ferrite("Ferrite", options.plugin, []), sockets("sockets"), built_in("built-in-again")]
    if options.faults:
        # Before the last, which shows that the training repeats itself.
        sides.insert(3, ferrite("Ferrite-under-faults", options.plugin, [("SOFTRNIC_FAULTS", options.faults)]))
    files.check_writable(options.out)
    setup = setup_of(options)
    placements = placement.on_this_machine(options.ranks, gpus.seen_by_torch())
    runs = [run_one(setup, side, placements, port) for side, port in zip(sides, placement.free_ports(len(sides)))]
    about = About(
        command=" ".join(sys.argv),
        plugin=files.library(options.plugin),
        versions=runs[0].versions,
        gpus=runs[0].gpus,
        variables=dict(setup.both),
        cycles=options.cycles,
        softrnic=bool(options.softrnic),
        sharded=options.sharded,
    )
    verdict = curves.judge(runs)
    found = Report(about, verdict, runs)
    exit_codes.write_and_print(lambda: report.write(options.out, found), verdict.text, options.out)
    return exit_codes.GOOD if verdict.is_good else exit_codes.WRONG


def run_one(setup: Setup, side: Side, placements: list[placement.Placement], port: int) -> Run:
    raw = run_side(setup, side, [one.at_port(port) for one in placements], side.name)
    if raw is None:
        raise Invalid("rank 0 is on another machine")
    run = Run.from_json(raw, side)
    print(
        f"{run.name}: {run.network}, GPUDirect {run.gdr}, {setup.task['steps']} steps, last loss {run.last_loss():.6f}, "
        f"{run.seconds:.0f} s",
        flush=True,
    )
    return run


def setup_of(options: argparse.Namespace) -> Setup:
    # A sum of more than two ranks depends on the order of addition: on algorithm, protocol and channels.
    fixed: Variables = (
        *gpudirect(options.gdr, bool(options.softrnic)),
        ("NCCL_ALGO", options.algo),
        ("NCCL_PROTO", options.proto),
        ("NCCL_MIN_NCHANNELS", "2"),
        ("NCCL_MAX_NCHANNELS", "2"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    )
    if options.softrnic:
        fixed += (("DDP_SOFTRNIC_TOOL", str(softrnic.tool(options.softrnic))),)
        if options.gdr == "on":
            fixed += (softrnic.gpu_helper(options.softrnic),)
    elif not any(name in os.environ for name in ("NCCL_HOSTID", "NCCL_P2P_DISABLE")):
        # Ranks of one machine would not need a network.
        fixed += (("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1"))
    return Setup(
        module=RANK,
        task={"steps": options.steps, "cycles": options.cycles, "sharded": options.sharded},
        both=(*fixed, *options.both),
        softrnic=options.softrnic,
        folder=options.out.resolve(),
        limit=options.limit,
        fabric=str(os.getpid()),
    )
