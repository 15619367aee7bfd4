"""The check: the runs, what they prove, the verdict."""

import argparse
import os
import sys
from pathlib import Path

from abtest import ending, evidence, plan, probe
from abtest import run as runs
from abtest.compare import digest, gdr_settings, local_seats
from abtest.plan import Invalid, Side
from abtest.seat import Seat, free_ports

from . import curves, report

WORKER = Path(__file__).resolve().parent / "train.py"


def run(options: argparse.Namespace) -> int:
    """Trains and compares; returns a code of abtest/ending.py."""
    sides = sides_of(options.plugin)
    probe.writable(options.out)
    setup = setup_of(options)
    seats = local_seats(options.ranks, probe.gpus_of_torch())
    results = []
    for side, port in zip(sides, free_ports(len(sides))):
        placed = [Seat(seat.rank, seat.world, seat.local_rank, seat.master, port) for seat in seats]
        result = runs.go(setup, side, placed, side.name, WORKER)
        result["gdr"] = evidence.check(result["evidence"], side.network, f"run {side.name}")
        results.append(result)
        print(f"{side.name}: {side.network}, GPUDirect {result['gdr']}, {options.steps} steps, "
              f"last loss {curves.last_loss(result):.6f}, {result['seconds']:.0f} s", flush=True)
    verdict = curves.judge([side.name for side in sides], results)
    about = {"command": " ".join(sys.argv), "plugin": digest(options.plugin), "versions": results[0]["versions"],
             "gpus": results[0]["gpus"], "variables": dict(setup.both), "cycles": options.cycles,
             "softrnic": bool(options.softrnic)}
    with ending.telling(verdict.text, options.out):
        report.write(options.out, about, [(side.name, side.network) for side in sides], results, verdict)
    return ending.GOOD if verdict.is_good else ending.WRONG


def sides_of(plugin: Path) -> list[Side]:
    """The built-in comes twice: what differs between its two runs is no network's doing."""
    stock, ferrite = plan.sides(plugin, [])
    sockets = Side("sockets", "Socket", (("NCCL_NET", "Socket"), ("NCCL_NET_PLUGIN", "none")))
    return [Side("built-in", "IB", stock.variables), Side("Ferrite", "Ferrite", ferrite.variables), sockets,
            Side("built-in-again", "IB", stock.variables)]


def setup_of(options: argparse.Namespace) -> runs.Setup:
    # Sums of more than two ranks depend on who adds first: on algorithm, protocol and channels.
    fixed = (*gdr_settings(options), ("NCCL_ALGO", options.algo), ("NCCL_PROTO", options.proto), ("NCCL_MIN_NCHANNELS", "2"),
             ("NCCL_MAX_NCHANNELS", "2"), ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"))
    if options.softrnic:
        tool = options.softrnic.resolve().parent / "bin/softrnic"
        if not tool.is_file():
            raise Invalid(f"--softrnic {options.softrnic}: {tool} is not there; scripts/build.sh makes both")
        fixed += (("DDP_SOFTRNIC_TOOL", str(tool)),)
        if options.gdr == "on":
            # Its copies are calls of the driver, which must not be held by somebody who waits for them: kernels are loaded at
            # the start, and PyTorch waits for a collective before it copies its result.
            fixed += (("CUDA_MODULE_LOADING", "EAGER"), ("TORCH_NCCL_BLOCKING_WAIT", "1"))
    elif not any(name in os.environ for name in ("NCCL_HOSTID", "NCCL_P2P_DISABLE")):
        # Ranks of one machine would not need a network.
        fixed += (("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1"))
    task = {"steps": options.steps, "cycles": options.cycles}
    return runs.Setup(task, (*fixed, *options.both), options.softrnic, options.out.resolve(), options.limit, str(os.getpid()))
