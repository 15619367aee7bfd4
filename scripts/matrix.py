#!/usr/bin/env python3
"""Drives NCCL itself over Ferrite: every operation, LL and Simple, rings and trees, in place and not, GPUDirect and not.

    python scripts/matrix.py --softrnic                              # the system's libnccl.so.2, on the software device
    python scripts/matrix.py --softrnic --libnccl A --libnccl B      # these two, unmodified
    python scripts/matrix.py --parts abort,flush --gdr on            # on this machine's RDMA devices

It needs libnccl.so.2, a CUDA driver and a GPU (several ranks may share one), but neither PyTorch nor a compiler. All ranks run on this
machine, each with an NCCL_HOSTID of its own, so that all data goes through the network. Parts:

    collectives   every operation and size, each with the protocol and the algorithm that it is told to use
    setups        machines that lend GPU memory by dma-buf, by address, both ways or not at all
    flush         NCCL_NET_FORCE_FLUSH: received data is flushed, and without it there is nothing for it
    register      sends from and into memory that the application has registered
    abort         a rank is killed in the middle of an all_reduce: what the others see, and when

Exit code 0: all right. 1: something is wrong. 2: it could not be tried. 130: interrupted; the cases that were done are in the report.
report.md and raw.json say more.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from abtest.ending import exit_code  # noqa: E402
from abtest.plan import count, sizes  # noqa: E402
from nccltest import matrix, plan  # noqa: E402


def parts(text: str) -> list[str]:
    chosen = text.split(",")
    unknown = [part for part in chosen if part not in plan.PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]!r}; there are {', '.join(plan.PARTS)}")
    return chosen


def rank_counts(text: str) -> list[int]:
    return [count(2, 64)(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libnccl", action="append", metavar="FILE", help="a libnccl.so.2; may be repeated; default: the system's")
    parser.add_argument("--libcuda", default="libcuda.so.1", metavar="FILE", help="the CUDA driver; default libcuda.so.1")
    parser.add_argument("--plugin", type=Path, default=root / "dist/lib/libnccl-net.so", help="Ferrite's library")
    parser.add_argument("--network", choices=["Ferrite", "IB"], default="Ferrite", help="IB: NCCL's built-in instead")
    parser.add_argument("--parts", type=parts, default=list(plan.PARTS), metavar="NAME,NAME",
                        help="of " + ", ".join(plan.PARTS))
    parser.add_argument("--ranks", type=rank_counts, default=[2], metavar="N,N", help="such as 2,4; default 2. Only the "
                        "collectives are run with each of them")
    parser.add_argument("--gdr", type=lambda text: text.split(","), default=["off"], metavar="WAY,WAY",
                        help="GPUDirect: off, on; on the software device off, dmabuf, peermem, both; default off")
    parser.add_argument("--sizes", type=sizes, default=sizes("8,1K,32K,1M,16M,256M,1G"), metavar="A..B|A,B,C",
                        help="bytes; default 8,1K,32K,1M,16M,256M,1G")
    parser.add_argument("--softrnic", nargs="?", type=Path, const=root / "dist/softrnic", metavar="DIR",
                        help="on the software device in DIR")
    parser.add_argument("--limit", type=count(2, 86400), default=300, help="seconds for one case; default 300")
    parser.add_argument("--out", type=Path, default=Path("report-matrix"), help="folder for the report; default report-matrix")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    return exit_code(lambda: matrix.run(options))


if __name__ == "__main__":
    sys.exit(main())
