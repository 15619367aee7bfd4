"""Trains the same small model over NCCL's built-in IB transport, over Ferrite and over sockets: the same to the last bit?

    python scripts/ddp.py                          # all GPUs of this machine, RDMA devices of this machine
    python scripts/ddp.py --softrnic --ranks 2     # on the software device, on a machine without RDMA

PyTorch's DistributedDataParallel, or with --sharded its FSDP, fresh processes for each run; the built-in runs twice, to show that
the training repeats itself at all. Each run makes and destroys its process group several times: file descriptors, threads and queue pairs
are counted after each. Exit code 0: every loss and every parameter is the same, and nothing leaks. 1: something differs, or
leaks. 2: the check is not valid, or could not be made. 130: interrupted. report.md and raw.json say more.
"""

import argparse
from pathlib import Path

from .. import exit_codes, options, repository
from . import training


def arguments() -> argparse.Namespace:
    parser = options.parser(__doc__)
    parser.add_argument("--plugin", type=Path, default=repository.PLUGIN, help="Ferrite's library")
    parser.add_argument("--steps", type=options.number(3, 100_000), default=300, help="of training; default 300")
    parser.add_argument(
        "--cycles",
        type=options.number(1, 100),
        metavar="N",
        help="process groups, one after the other, that share the steps; default 3, with --sharded 1",
    )
    parser.add_argument(
        "--sharded", action="store_true", help="share out parameters, gradients and optimiser among the ranks (FSDP: fully_shard)"
    )
    parser.add_argument("--ranks", type=options.number(2, 64), help="default: the GPUs of this machine, at least 2")
    parser.add_argument("--algo", default="Ring", help="NCCL_ALGO; default Ring")
    parser.add_argument("--proto", default="Simple", help="NCCL_PROTO; default Simple")
    options.add_gdr(parser, "GPUDirect")
    options.add_both(parser, "all runs")
    options.add_softrnic(parser)
    parser.add_argument("--faults", metavar="RULES", help="with --softrnic: train once more over Ferrite under these fault rules")
    options.add_limit(parser, 10, 900, "one run")
    options.add_out(parser, "report-ddp")
    chosen = parser.parse_args()
    chosen.cycles = chosen.cycles or (1 if chosen.sharded else 3)
    if chosen.sharded and chosen.cycles > 1:
        parser.error(f"--cycles {chosen.cycles}: with --sharded there is one, since the parameters are bound to the process group")
    if chosen.faults and not chosen.softrnic:
        parser.error("--faults is of the software device: --softrnic is missing")
    if chosen.cycles > chosen.steps:
        parser.error(f"--cycles {chosen.cycles} is more than --steps {chosen.steps}")
    return chosen


def main() -> int:
    chosen = arguments()
    return exit_codes.of_program(lambda: training.compare(chosen))
