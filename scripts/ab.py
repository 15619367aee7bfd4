#!/usr/bin/env python3
"""Compares Ferrite with NCCL's built-in IB transport inside PyTorch: per collective and size, with proof of which network ran.

On one machine it starts the ranks itself; under torchrun, srun or mpirun each of its processes is one rank:

    python scripts/ab.py                        # all GPUs of this machine, RDMA devices of this machine
    python scripts/ab.py --softrnic --ranks 2   # on the software device, on a machine without RDMA
    torchrun --nnodes 2 ... scripts/ab.py       # many machines
    python scripts/ab.py --read A.txt B.txt     # two outputs of nccl-tests that are there already

Each side runs in fresh processes, A B B A, several times over. Exit code 0: Ferrite is as good or better. 1: it is worse
somewhere. 2: the comparison is not valid. report.md, report.svg and raw.json say more.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from abtest import compare, nccltests, plan  # noqa: E402


def arguments() -> argparse.Namespace:
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", type=Path, default=root / "dist/lib/libnccl-net.so", help="side B's library")
    parser.add_argument("--collectives", type=plan.names, default=list(plan.COLLECTIVES), metavar="NAME,NAME",
                        help="of " + ", ".join(plan.COLLECTIVES))
    parser.add_argument("--sizes", type=plan.sizes, default=plan.sizes("8..1G"), metavar="A..B|A,B,C",
                        help="bytes, such as 8..64M (every fourth power of 2) or 8,4K,1M; default 8..1G")
    parser.add_argument("--blocks", type=plan.count(1, 20), default=3, help="how often A B B A is run; default 3")
    parser.add_argument("--ranks", type=plan.count(2, 64), help="on one machine; default: its GPUs, at least 2")
    parser.add_argument("--dtype", choices=sorted(plan.DTYPES), default="float32")
    parser.add_argument("--gdr", choices=["as-is", "on", "off"], default="as-is", help="GPUDirect on both sides")
    parser.add_argument("--both", type=plan.setting, action="append", default=[], metavar="NAME=VALUE",
                        help="a variable for both sides; may be repeated")
    parser.add_argument("--only-b", type=plan.setting, action="append", default=[], metavar="NAME=VALUE",
                        help="a variable for Ferrite alone")
    parser.add_argument("--softrnic", nargs="?", type=Path, const=root / "dist/softrnic", metavar="DIR",
                        help="both sides on the software device in DIR; one machine only")
    parser.add_argument("--limit", type=plan.count(10, 86400), default=900, help="seconds for one run of one side")
    parser.add_argument("--out", type=Path, default=Path("report-ab"), help="folder for the report; default report-ab")
    parser.add_argument("--read", nargs=2, type=Path, metavar=("A", "B"), help="outputs of nccl-tests to compare instead")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    return plan.exit_code(lambda: nccltests.compare(*options.read) if options.read else compare.run(options))


if __name__ == "__main__":
    sys.exit(main())
