"""Stands in for a rank of scripts/ddp.py that has torch and a GPU: writes the log and the result that such a rank would."""

import json
import os
import struct
import sys


def log_of(network: str, mood: str) -> str:
    way = "SHM" if mood == "shm" else f"NET/{network}/0"
    return (f"h:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\nh:1:1 [0] NCCL INFO Using network {network}\n"
            f"h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via {way}\n")


def single(value: float) -> float:
    """As 32 bits can say it."""
    return struct.unpack("f", struct.pack("f", value))[0]


def losses_of(task: dict, world: int, is_ferrite: bool, is_again: bool, mood: str) -> list[list[float]]:
    losses = [[single(5 / (1 + step / 10) + other) for step in range(task["steps"])] for other in range(world)]
    if mood == "last-bit" and is_ferrite:
        losses[1][7] = struct.unpack("f", struct.pack("i", struct.unpack("i", struct.pack("f", losses[1][7]))[0] + 1))[0]
    if mood == "unstable" and is_again:
        losses[0][3] *= 1.5
    return [[5.0] * task["steps"]] * world if mood == "stuck" else losses


def result_of(task: dict, world: int, network: str, mood: str) -> dict:
    """What rank 0 writes; `mood` says what is wrong with it."""
    from abtest import evidence

    is_ferrite, is_again = network == "Ferrite", task["result"].endswith("again.json")
    losses = losses_of(task, world, is_ferrite, is_again, mood)
    digests = [("b" if mood == "parameters" and is_ferrite else "a") * 64] * world
    if mood == "apart" and is_ferrite:
        digests[-1] = "c" * 64
    leak = mood == "leak" and is_ferrite or mood == "all-leak"
    held = [[{"fds": 50 + leak * cycle, "threads": 30, "qps": 2 * (mood == "pairs" and is_ferrite)} for cycle in range(task["cycles"])]
            for _ in range(world)]
    return {"losses": [[loss.hex() for loss in one] for one in losses], "digests": digests, "held": held, "seconds": 1.0,
            "evidence": [vars(evidence.read(log_of(network, mood)))] * world, "gpus": ["fake"] * world,
            "versions": {"torch": "0", "cuda": "0", "nccl": "2.21.5"}}


def main() -> None:
    task, mood, network = json.loads(os.environ["AB_TASK"]), os.environ.get("FAKE", ""), os.environ["NCCL_NET"]
    with open(os.environ["NCCL_DEBUG_FILE"], "w") as file:
        file.write(log_of(network, mood))
    if int(os.environ["RANK"]) == 0:
        sys.path.insert(0, os.environ["FAKE_SCRIPTS"])
        with open(task["result"], "w") as file:
            json.dump(result_of(task, int(os.environ["WORLD_SIZE"]), network, mood), file)


if __name__ == "__main__":
    main()
