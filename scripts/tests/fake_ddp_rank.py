"""Stands in for a rank of ddp that has PyTorch and a GPU: writes the log and the result that such a rank would. FAKE says what fails."""

import json
import os
import struct
from dataclasses import asdict
from typing import Any

from nccl_net_ferrite import evidence


def log_of(network: str, fake: str) -> str:
    way = "SHM" if fake == "shm" else f"NET/{network}/0"
    return (
        f"h:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\nh:1:1 [0] NCCL INFO Using network {network}\n"
        f"h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via {way}\n"
    )


def single(value: float) -> float:
    """Rounded to 32 bits."""
    [rounded] = struct.unpack("f", struct.pack("f", value))
    return float(rounded)


def next_single(value: float) -> float:
    """The next larger number of 32 bits."""
    [bits] = struct.unpack("i", struct.pack("f", value))
    [larger] = struct.unpack("f", struct.pack("i", bits + 1))
    return float(larger)


def losses_of(steps: int, world: int, is_ferrite: bool, is_again: bool, fake: str) -> list[list[float]]:
    losses = [[single(5 / (1 + step / 10) + other) for step in range(steps)] for other in range(world)]
    if fake == "last-bit" and is_ferrite:
        losses[1][7] = next_single(losses[1][7])
    if fake == "unstable" and is_again:
        losses[0][3] *= 1.5
    return [[5.0] * steps] * world if fake == "stuck" else losses


def result_of(task: dict[str, Any], world: int, network: str, fake: str) -> dict[str, Any]:
    """What rank 0 writes."""
    is_ferrite, is_again = network == "Ferrite", task["result"].endswith("again.json")
    losses = losses_of(task["steps"], world, is_ferrite, is_again, fake)
    digests = [("b" if fake == "parameters" and is_ferrite else "a") * 64] * world
    if fake == "apart" and is_ferrite:
        digests[-1] = "c" * 64
    leak = (fake == "leak" and is_ferrite) or fake == "all-leak"
    pairs = 2 * (fake == "pairs" and is_ferrite)
    held = [[{"fds": 50 + leak * cycle, "threads": 30, "qps": pairs} for cycle in range(task["cycles"])] for _ in range(world)]
    return {
        "losses": [[loss.hex() for loss in one] for one in losses],
        "digests": digests,
        "held": held,
        "seconds": 1.0,
        "evidence": [asdict(evidence.read(log_of(network, fake)))] * world,
        "gpus": ["fake"] * world,
        "versions": {"torch": "0", "cuda": "0", "nccl": "2.21.5"},
    }


def main() -> None:
    task, fake, network = json.loads(os.environ["AB_TASK"]), os.environ.get("FAKE", ""), os.environ["NCCL_NET"]
    with open(os.environ["NCCL_DEBUG_FILE"], "w") as file:
        file.write(log_of(network, fake))
    if int(os.environ["RANK"]) == 0:
        with open(task["result"], "w") as file:
            json.dump(result_of(task, int(os.environ["WORLD_SIZE"]), network, fake), file)


if __name__ == "__main__":
    main()
