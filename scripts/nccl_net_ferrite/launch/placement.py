"""Where a rank runs: on this machine alone, or among many that torchrun, srun or mpirun started."""

import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..errors import Invalid


@dataclass(frozen=True)
class Placement:
    """Of one rank."""

    rank: int
    world: int  # number of ranks
    local_rank: int
    master: str  # host of rank 0
    port: int  # a launcher's MASTER_PORT, or the port of one run; 0 if none is chosen yet
    ranks_here: int = 0  # on this machine, as the launcher says; 0 if it does not

    def at_port(self, port: int) -> "Placement":
        return replace(self, port=port)


# Launcher, and its names for rank, number of ranks, rank on this machine, number of ranks on this machine.
LAUNCHERS = [
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
]
MOST_PORT = 65535
# How long the host of rank 0 may have no address.
RESOLVED_S = 30.0


def of_launcher(environment: Mapping[str, str] = os.environ) -> Placement | None:
    """Of this process among those that a launcher started; None if no launcher started it."""
    for launcher, rank, world, local, here in LAUNCHERS:
        if rank not in environment or world not in environment or environment[world] == "1":
            continue
        texts = [environment.get(name, "") for name in (rank, world, local)]
        if not all(text.isdigit() for text in texts):
            raise Invalid(f"{launcher} set {rank}={texts[0]}, {world}={texts[1]} and {local}={texts[2]!r}: no numbers")
        master = environment.get("MASTER_ADDR") or first_host(environment.get("SLURM_STEP_NODELIST", ""))
        if not master:
            raise Invalid(f"{launcher} does not say where rank 0 is: set MASTER_ADDR to its host")
        port = environment.get("MASTER_PORT", "29500")
        if not port.isdigit() or not 0 < int(port) <= MOST_PORT:
            raise Invalid(f"MASTER_PORT={port}: must be a number from 1 to {MOST_PORT}")
        ranks_here = environment.get(here, "")
        if launcher == "srun" and environment.get("SLURM_NNODES") == "1":
            ranks_here = environment[world]
        number, count, local_number = map(int, texts)
        return Placement(number, count, local_number, master, int(port), int(ranks_here) if ranks_here.isdigit() else 0)
    return None


def on_this_machine(ranks: int | None, gpus: int) -> list[Placement]:
    """Of `ranks` ranks; by default as many as there are GPUs, and at least 2."""
    ranks = ranks or max(2, gpus)
    return [Placement(rank, ranks, rank, "127.0.0.1", 0) for rank in range(ranks)]


def port_of_run(launched: Placement, run: int) -> int:
    """Where the ranks of run `run`, counted from 0, connect: one above the launcher's own port, and on from there."""
    port = launched.port + 1 + run
    if port > MOST_PORT:
        raise Invalid(f"MASTER_PORT={launched.port}: each run takes a port above it, up to {port}, which is more than {MOST_PORT}")
    return port


def check_one_host(launched: Placement, environment: Mapping[str, str] = os.environ) -> None:
    """The software device joins processes of one machine only. To a launcher, network namespaces of it are machines of their own: a
    software network with a name says that they are not."""
    if launched.ranks_here != launched.world and not environment.get("SOFTRNIC_FABRIC"):
        known = f"{launched.ranks_here} of {launched.world} are" if launched.ranks_here else "the launcher does not say how many are"
        raise Invalid(
            f"--softrnic needs all ranks on one machine: {known} on this one. If the others are in network namespaces of it, "
            "set SOFTRNIC_FABRIC to the same name for all ranks"
        )


def check_master(launched: Placement, limit: float = RESOLVED_S) -> None:
    """The host of rank 0 has an address, within `limit` seconds: a pod's name has one some time after the pod has begun."""
    deadline = time.monotonic() + limit
    while True:
        try:
            socket.getaddrinfo(launched.master, None)
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise Invalid(
                    f"rank 0 is on host {launched.master}, which has no address here ({error.strerror}): set MASTER_ADDR to a name or "
                    "an address that all hosts, and what runs in their containers, can resolve"
                ) from error
            time.sleep(0.2)


def first_host(nodes: str) -> str:
    """The first of a node list such as gpu[03-07,11],login1."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+))?", nodes)
    return "".join(part or "" for part in match.groups()) if match else ""


def free_ports(count: int) -> list[int]:
    """TCP ports that nobody listens on at this moment."""
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports: list[int] = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
