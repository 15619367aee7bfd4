"""Stands in for a rank that has torch and a GPU: writes the log and the result that such a rank would."""

import json
import os
import sys
import time

task = json.loads(os.environ["AB_TASK"])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
network = os.environ["NCCL_NET"]
is_b = network == "Ferrite"
mood = os.environ.get("FAKE", "")
run = int(os.path.basename(task["result"])[:2])
if mood == "hang" or mood == "hang-later" and run == 6:
    if "FAKE_HANGS" in os.environ:
        open(f"{os.environ['FAKE_HANGS']}.{os.getpid()}", "w").close()
    time.sleep(1000)
if mood == "die" and is_b and rank == 1:
    print("RuntimeError: NCCL Error 6: NET/Ferrite : the peer has died")
    sys.exit(3)
named = "Socket" if mood == "fallback" and is_b else network
way = "SHM" if mood == "shm" else f"NET/{named}/0{'/GDRDMA' if mood == 'gdr' and is_b else ''}"
log = f"h:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\nh:1:1 [0] NCCL INFO Using network {named}\n"
log += f"h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via {way}\n"
with open(os.environ["NCCL_DEBUG_FILE"], "w") as file:
    file.write(log)
if rank == 0:
    sys.path.insert(0, os.environ["FAKE_SCRIPTS"])
    from abtest import evidence

    slower = float(os.environ.get("FAKE_B", "1")) if is_b else 1.0
    rows = [
        {"collective": name, "size": size, "bytes": size, "us": (10 + size / 1e4) * slower * (1 + 0.001 * ((run * 7) % 5)),
         "wrong": int(mood == "wrong" and is_b)}
        for name in task["collectives"] for size in task["sizes"]
    ]
    found = [vars(evidence.read(log)) for _ in range(world)]
    versions = {"torch": "0", "cuda": "0", "nccl": "2.21.5"}
    with open(task["result"], "w") as file:
        json.dump({"rows": rows, "evidence": found, "gpus": ["fake"] * world, "versions": versions}, file)
