"""Where this process sits: the only one, or one of many that torchrun, srun or mpirun started."""

import os
import re
import socket
from dataclasses import dataclass

from .plan import Invalid


@dataclass(frozen=True)
class Seat:
    rank: int
    world: int
    local_rank: int
    master: str
    port: int


# Launcher, and its names for rank, number of ranks, rank on this machine.
LAUNCHERS = [
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
]


def of_launcher(environment=os.environ) -> Seat | None:
    """This process's seat among those that a launcher started; None if it was started by hand."""
    for launcher, rank, world, local in LAUNCHERS:
        if rank not in environment or world not in environment or environment[world] == "1":
            continue
        numbers = [environment.get(name, "") for name in (rank, world, local)]
        if not all(number.isdigit() for number in numbers):
            raise Invalid(f"{launcher} set {rank}={numbers[0]}, {world}={numbers[1]} and {local}={numbers[2]!r}: no numbers")
        master = environment.get("MASTER_ADDR") or first_host(environment.get("SLURM_STEP_NODELIST", ""))
        if not master:
            raise Invalid(f"{launcher} does not say where rank 0 is: set MASTER_ADDR to its host")
        return Seat(*map(int, numbers), master, int(environment.get("MASTER_PORT", "29500")))
    return None


def first_host(nodes: str) -> str:
    """The first of a node list such as gpu[03-07,11],login1."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+))?", nodes)
    return "".join(part or "" for part in match.groups()) if match else ""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at this moment."""
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
