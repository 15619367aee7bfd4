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
    port: int  # of a launcher's MASTER_PORT, or the one of this run; 0 if none is chosen yet
    here: int = 0  # ranks on this machine, as the launcher says; 0 if it does not


# Launcher, and its names for rank, number of ranks, rank on this machine, number of ranks on this machine.
LAUNCHERS = [
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
]
MOST_PORT = 65535


def of_launcher(environment=os.environ) -> Seat | None:
    """This process's seat among those that a launcher started; None if it was started by hand."""
    for launcher, rank, world, local, here in LAUNCHERS:
        if rank not in environment or world not in environment or environment[world] == "1":
            continue
        numbers = [environment.get(name, "") for name in (rank, world, local)]
        if not all(number.isdigit() for number in numbers):
            raise Invalid(f"{launcher} set {rank}={numbers[0]}, {world}={numbers[1]} and {local}={numbers[2]!r}: no numbers")
        master = environment.get("MASTER_ADDR") or first_host(environment.get("SLURM_STEP_NODELIST", ""))
        if not master:
            raise Invalid(f"{launcher} does not say where rank 0 is: set MASTER_ADDR to its host")
        port = environment.get("MASTER_PORT", "29500")
        if not port.isdigit() or not 0 < int(port) <= MOST_PORT:
            raise Invalid(f"MASTER_PORT={port}: must be a number from 1 to {MOST_PORT}")
        on_this_machine = environment.get(here, "")
        if launcher == "srun" and environment.get("SLURM_NNODES") == "1":
            on_this_machine = environment[world]
        return Seat(*map(int, numbers), master, int(port), int(on_this_machine) if on_this_machine.isdigit() else 0)
    return None


def port_of(launched: Seat, number: int) -> int:
    """Where the ranks of run `number`, counted from 0, meet: one above the launcher's own port, and on from there."""
    port = launched.port + 1 + number
    if port > MOST_PORT:
        raise Invalid(f"MASTER_PORT={launched.port}: each run takes a port above it, up to {port}, which is more than {MOST_PORT}")
    return port


def check_one_host(launched: Seat) -> None:
    """The software device joins processes of one machine only."""
    if launched.here != launched.world:
        known = f"{launched.here} of {launched.world} are" if launched.here else "the launcher does not say how many are"
        raise Invalid(f"--softrnic needs all ranks on one machine: {known} on this one")


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
