"""Stands in for a rank of scripts/ddp.py that has torch and a GPU: writes the log and the result that such a rank would."""

import json
import os
import struct
import sys

task = json.loads(os.environ["AB_TASK"])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
network, mood = os.environ["NCCL_NET"], os.environ.get("FAKE", "")
is_ferrite, is_again = network == "Ferrite", task["result"].endswith("again.json")
log = (f"h:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\nh:1:1 [0] NCCL INFO Using network {network}\n"
       f"h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via {'SHM' if mood == 'shm' else f'NET/{network}/0'}\n")
with open(os.environ["NCCL_DEBUG_FILE"], "w") as file:
    file.write(log)
if rank == 0:
    sys.path.insert(0, os.environ["FAKE_SCRIPTS"])
    from abtest import evidence

    losses = [[struct.unpack("f", struct.pack("f", 5 / (1 + step / 10) + other))[0] for step in range(task["steps"])]
              for other in range(world)]
    if mood == "last-bit" and is_ferrite:
        bits = struct.unpack("i", struct.pack("f", losses[1][7]))[0] + 1
        losses[1][7] = struct.unpack("f", struct.pack("i", bits))[0]
    if mood == "unstable" and is_again:
        losses[0][3] *= 1.5
    if mood == "stuck":
        losses = [[5.0] * task["steps"]] * world
    digests = ["a" * 64] * world
    if mood == "parameters" and is_ferrite:
        digests = ["b" * 64] * world
    if mood == "apart" and is_ferrite:
        digests[-1] = "c" * 64
    leak = mood == "leak" and is_ferrite or mood == "all-leak"
    held = [[{"fds": 50 + leak * cycle, "threads": 30, "qps": 2 * (mood == "pairs" and is_ferrite)} for cycle in range(task["cycles"])]
            for _ in range(world)]
    with open(task["result"], "w") as file:
        json.dump({"losses": [[loss.hex() for loss in one] for one in losses], "digests": digests, "held": held, "seconds": 1.0,
                   "evidence": [vars(evidence.read(log))] * world, "gpus": ["fake"] * world,
                   "versions": {"torch": "0", "cuda": "0", "nccl": "2.21.5"}}, file)
