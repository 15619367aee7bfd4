"""Drives NCCL itself over Ferrite: every operation, LL and Simple, rings and trees, in place and not, GPUDirect and not.

    python scripts/matrix.py --softrnic                              # the system's libnccl.so.2, on the software device
    python scripts/matrix.py --softrnic --libnccl A --libnccl B      # these two, unmodified
    python scripts/matrix.py --parts abort,flush --gdr on            # on this machine's RDMA devices

It needs libnccl.so.2, a CUDA driver and a GPU (several ranks may share one), but neither PyTorch nor a compiler. All ranks run on this
machine, each with an NCCL_HOSTID of its own, so that all data goes through the network. Parts:

    collectives   every operation and size, each with the protocol and the algorithm that it is told to use
    setups        machines on which GPU memory can be registered by dma-buf, by address, both ways or not at all
    flush         NCCL_NET_FORCE_FLUSH: received data is flushed, and without it there is nothing for it
    register      sends from and into memory that the application has registered
    abort         a rank is killed in the middle of an all_reduce: what the others see, and when

Exit code 0: all right. 1: something is wrong. 2: it could not be tried. 130: interrupted; the cases that were done are in the report.
report.md and raw.json say more.
"""

import argparse
from pathlib import Path

from .. import exit_codes, options, repository, sizes
from . import cases, program


def parts(text: str) -> list[str]:
    chosen = text.split(",")
    unknown = [part for part in chosen if part not in cases.PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]!r}; there are {', '.join(cases.PARTS)}")
    return chosen


def rank_counts(text: str) -> list[int]:
    return [options.number(2, 64)(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = options.parser(__doc__)
    parser.add_argument("--libnccl", action="append", metavar="FILE", help="a libnccl.so.2; may be repeated; default: the system's")
    parser.add_argument("--libcuda", default="libcuda.so.1", metavar="FILE", help="the CUDA driver; default libcuda.so.1")
    parser.add_argument("--plugin", type=Path, default=repository.PLUGIN, help="Ferrite's library")
    parser.add_argument("--network", choices=["Ferrite", "IB"], default="Ferrite", help="IB: NCCL's built-in instead")
    parser.add_argument("--parts", type=parts, default=list(cases.PARTS), metavar="NAME,NAME", help="of " + ", ".join(cases.PARTS))
    parser.add_argument(
        "--ranks",
        type=rank_counts,
        default=[2],
        metavar="N,N",
        help="such as 2,4; default 2. Only the collectives are run with each of them",
    )
    parser.add_argument(
        "--gdr",
        type=lambda text: text.split(","),
        default=["off"],
        metavar="WAY,WAY",
        help="GPUDirect: off, on; on the software device off, dmabuf, peermem, both; default off",
    )
    parser.add_argument(
        "--sizes",
        type=sizes.parse_list,
        default=sizes.parse_list("8,1K,32K,1M,16M,256M,1G"),
        metavar="A..B|A,B,C",
        help="bytes; default 8,1K,32K,1M,16M,256M,1G",
    )
    options.add_softrnic(parser)
    options.add_limit(parser, 2, 300, "one case")
    options.add_out(parser, "report-matrix")
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    return exit_codes.of_program(lambda: program.run(chosen))
