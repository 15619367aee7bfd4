#!/usr/bin/env python3
"""Trains the same small model over NCCL's built-in IB transport, over Ferrite and over sockets: the same to the last bit?

    python scripts/ddp.py                          # all GPUs of this machine, RDMA devices of this machine
    python scripts/ddp.py --softrnic --ranks 2     # on the software device, on a machine without RDMA

PyTorch's DistributedDataParallel, fresh processes for each run; the built-in runs twice, to show that the training repeats
itself at all. Each run makes and destroys its process group several times: file descriptors, threads and queue pairs
are counted after each. Exit code 0: every loss and every parameter is the same, and nothing leaks. 1: something differs, or
leaks. 2: the check is not valid, or could not be made. 130: interrupted. report.md, curves.svg and raw.json say more.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from abtest import ending, plan  # noqa: E402
from ddptest import check  # noqa: E402


def arguments() -> argparse.Namespace:
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", type=Path, default=root / "dist/lib/libnccl-net.so", help="Ferrite's library")
    parser.add_argument("--steps", type=plan.count(3, 100_000), default=300, help="of training; default 300")
    parser.add_argument("--cycles", type=plan.count(1, 100), default=3, metavar="N",
                        help="process groups, one after the other, that share the steps; default 3")
    parser.add_argument("--ranks", type=plan.count(2, 64), help="default: the GPUs of this machine, at least 2")
    parser.add_argument("--algo", default="Ring", help="NCCL_ALGO; default Ring")
    parser.add_argument("--proto", default="Simple", help="NCCL_PROTO; default Simple")
    parser.add_argument("--gdr", choices=["as-is", "on", "off"], default="as-is", help="GPUDirect")
    parser.add_argument("--both", type=plan.setting, action="append", default=[], metavar="NAME=VALUE",
                        help="a variable for all runs; may be repeated")
    parser.add_argument("--softrnic", nargs="?", type=Path, const=root / "dist/softrnic", metavar="DIR",
                        help="on the software device in DIR")
    parser.add_argument("--limit", type=plan.count(10, 86400), default=900, help="seconds for one run; default 900")
    parser.add_argument("--out", type=Path, default=Path("report-ddp"), help="folder for the report; default report-ddp")
    options = parser.parse_args()
    if options.cycles > options.steps:
        parser.error(f"--cycles {options.cycles} is more than --steps {options.steps}")
    return options


def main() -> int:
    options = arguments()
    return ending.exit_code(lambda: check.run(options))


if __name__ == "__main__":
    sys.exit(main())
