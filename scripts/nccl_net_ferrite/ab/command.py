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
from pathlib import Path

from .. import exit_codes, files, options, repository, sizes
from . import comparison, nccl_tests, plan


def arguments() -> argparse.Namespace:
    parser = options.parser(__doc__)
    parser.add_argument("--plugin", type=Path, default=repository.PLUGIN, help="side B's library")
    parser.add_argument("--baseline", type=Path, metavar="PLUGIN", help="side A: this library of Ferrite instead of NCCL's own transport")
    parser.add_argument("--libnccl", type=Path, metavar="FILE", help="measure this libnccl.so.2, called by itself, and not PyTorch's")
    parser.add_argument("--libcuda", default="libcuda.so.1", metavar="FILE", help="the CUDA driver for --libnccl; default libcuda.so.1")
    parser.add_argument(
        "--collectives",
        type=plan.collectives,
        default=list(plan.COLLECTIVES),
        metavar="NAME,NAME",
        help="of " + ", ".join(plan.COLLECTIVES),
    )
    parser.add_argument(
        "--sizes",
        type=sizes.parse_list,
        default=sizes.parse_list("8..1G"),
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
    parser.add_argument("--dtype", choices=sorted(plan.DTYPES), default="float32")
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
        return nccl_tests.compare(*chosen.read)
    if chosen.again:
        files.check_writable(chosen.out)
        return comparison.judge(chosen.again, chosen.out, chosen.effect)
    return comparison.compare(chosen)


def main() -> int:
    chosen = arguments()
    return exit_codes.of_program(lambda: run(chosen))
