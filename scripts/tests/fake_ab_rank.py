"""Stands in for a rank of ab that has NCCL and a GPU: writes the log and the result that such a rank would. FAKE says what fails."""

import glob
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict

from nccl_net_ferrite import evidence


def main() -> None:
    task = json.loads(os.environ["AB_TASK"])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # NCCL_NET decides for all communicators.
    networks = [os.environ.get("NCCL_NET") or network for network in task["networks"]]
    fake = os.environ.get("FAKE", "")
    run = int(os.path.basename(task["result"])[:2])
    if fake == "hang" or (fake == "hang-later" and run == 6):
        if "FAKE_HANGS" in os.environ:
            open(f"{os.environ['FAKE_HANGS']}.{os.getpid()}", "w").close()
        time.sleep(1000)
    if fake == "orphan" and rank == 1:
        leave_child()
    if fake == "exit-after-orphan":
        while not glob.glob(f"{os.environ['FAKE_HANGS']}.*"):
            time.sleep(0.01)
        sys.exit(3)
    if rank == 1 and (fake == "die" or (fake == "die-later" and run == 3)):
        print("NcclError: ncclAllReduce over Ferrite: remote error (6)")
        sys.exit(3)
    logs = [log_of(network, fake, network == "Ferrite") for network in networks]
    with open(os.environ["NCCL_DEBUG_FILE"], "w") as file:
        file.write("".join(logs))
    if rank == 0:
        slower = [float(os.environ.get("FAKE_B", "1")) if network == "Ferrite" else 1.0 for network in networks]
        rows = [
            {
                "collective": name,
                "size": size,
                "bytes": size,
                "us": [(10 + size / 1e4) * times * (1 + 0.001 * ((run * 7 + 3 * place) % 5)) for place, times in enumerate(slower)],
                "wrong": [int(fake == "wrong" and network == "Ferrite") for network in networks],
            }
            for name in task["collectives"]
            for size in task["sizes"]
        ]
        found = [[asdict(evidence.read(log))] * world for log in logs]
        with open(task["result"], "w") as file:
            json.dump({"rows": rows, "evidence": found, "gpus": ["fake"] * world, "versions": {"nccl": "2.21.5"}}, file)


def log_of(network: str, fake: str, is_b: bool) -> str:
    named = "Socket" if fake == "fallback" and is_b else network
    way = "SHM" if fake == "shm" else f"NET/{named}/0{'/GDRDMA' if fake == 'gdr' and is_b else ''}"
    return (
        f"h:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\nh:1:1 [0] NCCL INFO Using network {named}\n"
        f"h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via {way}\n"
    )


def leave_child() -> None:
    """Starts a process that outlives this one, and that SIGTERM does not end; its number is in a file."""
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(1000)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    if child.stdout:
        # It has written a line: it ignores SIGTERM from now on.
        child.stdout.readline()
    open(f"{os.environ['FAKE_HANGS']}.{child.pid}", "w").close()


if __name__ == "__main__":
    main()
