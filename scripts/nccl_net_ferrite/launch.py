"""Processes of this package's runs: GPUs and places of ranks, their environment, ranks that are started together, watched and ended."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from . import exit_codes
from .exit_codes import Invalid
from .files import read_json
from .networks import Side, Variables
from .rendezvous import Rendezvous

# -- how a Python process of this package is started. It works from the repository, and where the package is installed --

# The folder that has the package. It takes the place of the current folder, which -c puts first in the path of modules: a folder
# `torch` in the current folder must not be taken for PyTorch.
PARENT = Path(__file__).resolve().parents[1]
RUN_MODULE = "import runpy, sys; sys.path[0] = sys.argv.pop(1); runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def python_command(module: str, *arguments: str) -> list[str]:
    """Runs `module`, such as "nccl_net_ferrite.matrix_rank", as a program."""
    return [sys.executable, "-c", RUN_MODULE, str(PARENT), module, *arguments]


# -- how many GPUs a process sees here. A process of its own counts them: this one keeps neither PyTorch nor the CUDA driver loaded --

COUNT_BY_TORCH = "import torch; print(torch.cuda.device_count())"


def gpus_seen_by_torch() -> int:
    done = finished([sys.executable, "-c", COUNT_BY_TORCH])
    if done.returncode:
        raise Invalid(f"PyTorch cannot be used in {sys.executable}: {last_line(done.stderr)}; install it")
    return not_zero(int(done.stdout), "PyTorch")


# What the import maps; some builds of PyTorch map it later, from this package.
FIND_NCCL = """
import glob, json, torch
found = {line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if "libnccl.so" in line}
try:
    import nvidia.nccl
    found = found or {path for folder in nvidia.nccl.__path__ for path in glob.glob(f"{folder}/lib/libnccl.so.2")}
except ImportError:
    pass
print(json.dumps([torch.__version__, sorted(found)]))
"""


def nccl_of_torch() -> tuple[str, Path]:
    """The version of PyTorch here, and the libnccl.so.2 that it uses."""
    done = finished([sys.executable, "-c", FIND_NCCL])
    advice = "or name a libnccl.so.2 with --libnccl"
    if done.returncode:
        raise Invalid(f"PyTorch cannot be used in {sys.executable}: {last_line(done.stderr)}; install it, {advice}")
    version, paths = json.loads(last_line(done.stdout))
    if not paths:
        raise Invalid(f"PyTorch {version} in {sys.executable} loads no libnccl.so.2: install PyTorch for CUDA, {advice}")
    return version, Path(paths[0])


def seen_by_driver(libcuda: str, libnccl: Path | str) -> tuple[int, str]:
    """GPUs that the CUDA driver sees, and the version of NCCL in `libnccl`. Either may be "", and is left out."""
    done = finished(python_command("nccl_net_ferrite.nccl", libcuda, str(libnccl)))
    if done.returncode and not libnccl:
        raise Invalid(f"{no_gpu(libcuda)} ({last_line(done.stderr)})")
    if done.returncode:
        raise Invalid(f"--libnccl {libnccl}{f' with --libcuda {libcuda}' if libcuda else ''}: {last_line(done.stderr)}")
    count, version = done.stdout.split()
    return not_zero(int(count), libcuda) if libcuda else 0, version


def finished(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False)


def not_zero(count: int, who: str) -> int:
    if count == 0:
        raise Invalid(no_gpu(who))
    return count


def no_gpu(who: str) -> str:
    """What is missing, and what helps."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    given = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
    return (
        f"{who} sees no GPU on {os.uname().nodename}{given}: check it with nvidia-smi; a container gets GPUs by --gpus all, a job of Slurm "
        "by srun --gpus-per-node, a pod by the resource nvidia.com/gpu"
    )


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it ended without a word"])[-1]


# -- where a rank runs: on this machine alone, or among many that torchrun, srun or mpirun started --


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
# How long the processes of a launcher may need to come together.
MET_S = 120.0


def placement_of_launcher(environment: Mapping[str, str] = os.environ) -> Placement | None:
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


def placements_here(ranks: int | None, gpus: int) -> list[Placement]:
    """Of `ranks` ranks; by default as many as there are GPUs, and at least 2."""
    ranks = ranks or max(2, gpus)
    return [Placement(rank, ranks, rank, "127.0.0.1", 0) for rank in range(ranks)]


def check_one_host(launched: Placement, environment: Mapping[str, str] = os.environ) -> None:
    """The software device joins processes of one machine only. To a launcher, network namespaces of it are machines of their own: a
    software network with a name says that they are not."""
    if launched.ranks_here != launched.world and not environment.get("SOFTRNIC_FABRIC"):
        known = f"{launched.ranks_here} of {launched.world} are" if launched.ranks_here else "the launcher does not say how many are"
        raise Invalid(
            f"--softrnic needs all ranks on one machine: {known} on this one. If the others are in network namespaces of it, "
            "set SOFTRNIC_FABRIC to the same name for all ranks"
        )


def meet(launched: Placement, limit: int) -> Rendezvous:
    """All processes that a launcher started, at the port above the launcher's own. The ranks of their runs meet at the next one."""
    port = launched.port + 1
    if port + 1 > MOST_PORT:
        raise Invalid(f"MASTER_PORT={launched.port}: the ranks meet at the two ports above it, which are more than {MOST_PORT}")
    check_master(launched)
    try:
        return Rendezvous(launched.rank, launched.world, launched.master, port, limit + MET_S, MET_S)
    except OSError as error:
        raise Invalid(
            f"the ranks do not meet at port {port} of {launched.master}: {error}; open TCP ports {port} and {port + 1} there, or choose "
            "others by MASTER_PORT"
        ) from error


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


@contextmanager
def own_ports(count: int) -> Iterator[int]:
    """The first of `count` TCP ports in a row, which nobody else gets meanwhile. A process that names one can listen there."""
    while True:
        with ExitStack() as held:
            first = 0
            try:
                for number in range(count):
                    one = held.enter_context(socket.socket())
                    one.bind(("127.0.0.1", first + number))
                    first = first or one.getsockname()[1]
                    # Not before: then the port might be another process's in the same way.
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            except (OSError, OverflowError):
                if not first:
                    raise
                continue
            yield first
            return


# -- processes of one run, one for each rank on this machine: started together, watched, and ended with all that they started --

# How often ranks are looked at.
INTERVAL_S = 0.02
# How long a rank may take to end after SIGTERM, and its process group after SIGKILL.
END_LIMIT_S = 5.0


@dataclass(frozen=True)
class Rank:
    number: int
    module: str  # that it runs, such as "nccl_net_ferrite.matrix_rank"
    environment: dict[str, str]
    ends_with: int = 0  # exit status that the process has to end with; below 0 is a signal


class RankProcess:
    """Leads a process group of its own, which has the number of the process."""

    def __init__(self, rank: Rank, output: Path, blocked: set[signal.Signals]):
        """With `blocked` as the mask of blocked signals."""
        self.rank = rank
        with open(output, "w") as file:
            self.popen = subprocess.Popen(
                python_command(rank.module),
                env=rank.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(signal.pthread_sigmask, signal.SIG_SETMASK, blocked),
            )

    def status(self) -> int | None:
        """How it has ended, as `Rank.ends_with` has it; None while it runs. One that has ended is reaped at once: the other ranks may
        look whether its number is still there."""
        return self.popen.poll()

    def signal_group(self, number: signal.Signals) -> None:
        """Signals the process and its children. When the process has been reaped, its number stays the group's as long as the group
        has members; if there is a process of that number, the number was given to another one, and the group is not ours."""
        if self.status() is not None and Path(f"/proc/{self.popen.pid}").exists():
            return
        try:
            os.killpg(self.popen.pid, number)
        except ProcessLookupError:
            pass


def run_ranks(ranks: list[Rank], folder: Path, run: str, limit: int) -> None:
    """Until all have ended as they should; the first that has not ends the run."""
    started: list[RankProcess] = []
    try:
        for rank in ranks:
            # A signal between the start of a process and its entry in the list would leave a process that nobody ends.
            with exit_codes.blocked() as before:
                started.append(RankProcess(rank, output_of(folder, run, rank.number), before))
        wait_for_ranks(started, folder, run, limit)
    finally:
        with exit_codes.blocked():
            end_ranks(started)


def wait_for_ranks(processes: list[RankProcess], folder: Path, run: str, limit: int) -> None:
    deadline = time.monotonic() + limit
    while True:
        statuses = [process.status() for process in processes]
        for process, status in zip(processes, statuses):
            if status not in (None, process.rank.ends_with):
                raise Invalid(failure(folder, run, process.rank.number, f"ended with {status}"))
        if None not in statuses:
            return
        if time.monotonic() > deadline:
            late = processes[statuses.index(None)].rank.number
            raise Invalid(failure(folder, run, late, f"not done after {limit} s (--limit)"))
        time.sleep(INTERVAL_S)


def end_ranks(processes: list[RankProcess]) -> None:
    """Ends each rank and all processes of its group: a child of a rank may outlive it. A process that has left the group, by setsid
    or setpgid, is not found."""
    for process in processes:
        if process.status() is None:
            process.signal_group(signal.SIGTERM)
    deadline = time.monotonic() + END_LIMIT_S
    while any(process.status() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(INTERVAL_S)
    for process in processes:
        process.signal_group(signal.SIGKILL)
    deadline = time.monotonic() + END_LIMIT_S
    groups = {process.popen.pid for process in processes}
    while living_groups() & groups and time.monotonic() < deadline:
        time.sleep(INTERVAL_S)
    for process in processes:
        try:
            process.popen.wait(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            pass


def living_groups() -> set[int]:
    """Process groups of this machine that have a process which has not ended. A zombie has ended, and need not be ours to reap."""
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = Path("/proc", entry, "stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        # State, parent and group follow the name, which is in parentheses and may have any character.
        state, _, group = text.rpartition(")")[2].split()[:3]
        if state not in ("Z", "X"):
            found.add(int(group))
    return found


def output_of(folder: Path, run: str, rank: int) -> Path:
    """Standard output and standard error of that rank."""
    return folder / f"{run}-rank{rank}.out"


def nccl_log_of(folder: Path, run: str, rank: int) -> Path:
    return folder / f"{run}-rank{rank}.nccl.log"


def failure(folder: Path, run: str, rank: int, what: str) -> str:
    """What went wrong, with the last lines of the rank's output and of its NCCL log."""
    lines = [f"run {run}, rank {rank}: {what}"]
    for path in (output_of(folder, run, rank), nccl_log_of(folder, run, rank)):
        found = path.read_text(errors="replace").splitlines() if path.exists() else []
        warnings = [line for line in found if "WARN" in line or "Error" in line][-6:]
        lines += [f"{path}:", *(warnings or found[-6:])]
    return "\n  ".join(lines)


# -- the software RDMA device: what a rank that runs on it finds in its environment --


def check_softrnic(folder: Path | None) -> None:
    if folder and not (folder / "libibverbs.so.1").is_file():
        raise Invalid(f"--softrnic {folder}: no libibverbs.so.1 there; scripts/build.sh makes it")


def is_one_file(softrnic: Path) -> bool:
    """Whether both names of the library lead to one file: a wheel has no links."""
    other = softrnic / "libibverbs.so"
    return not other.exists() or other.samefile(softrnic / "libibverbs.so.1")


def rdma_ports(softrnic: Path | None, devices: Path = Path("/sys/class/infiniband")) -> str:
    """The ports of RDMA devices that are up; raises Invalid if none is."""
    if softrnic or "SOFTRNIC_FABRIC" in os.environ:
        return "the software device"
    states = {f"{path.parts[-4]}:{path.parts[-2]}": path.read_text().strip() for path in sorted(devices.glob("*/ports/*/state"))}
    up = [port for port, state in states.items() if state.endswith("ACTIVE")]
    if not up:
        found = "; ".join(f"{port} is {state}" for port, state in states.items()) or f"{devices} has no device"
        raise Invalid(f"no RDMA port is up: {found}; `ferrite doctor` says what is in the way, and --softrnic does without a card")
    return f"{', '.join(up)} up"


def softrnic_environment(folder: Path, rank: int, fabric: str) -> dict[str, str]:
    """Each rank of this machine is a node of its own to NCCL, on a software network `fabric` that no other run shares."""
    path = [str(folder.resolve()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        "LD_LIBRARY_PATH": ":".join(path),
        "NCCL_IBVERBS_LIB": str(folder.resolve() / "libibverbs.so.1"),
        "SOFTRNIC_FABRIC": f"ab-{fabric}",
        "SOFTRNIC_QUIET": "1",
        "NCCL_HOSTID": f"rank{rank}",
        # In network namespaces of their own the ranks need an interface between these.
        "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", "lo"),
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_GIN_TYPE": "0",
    }


def softrnic_tool(folder: Path) -> Path:
    """The program `softrnic` beside the library in `folder`."""
    found = folder.resolve().parent / "bin/softrnic"
    if not found.is_file():
        raise Invalid(f"--softrnic {folder}: {found} is not there; scripts/build.sh makes both")
    return found


def gpu_helper(folder: Path) -> tuple[str, str]:
    """The device copies by calls of the CUDA driver, which would wait in a process while PyTorch waits there inside of the driver."""
    return "SOFTRNIC_GPU_HELPER", str(softrnic_tool(folder))


# -- one run of one side of a comparison, each rank a fresh process: their environment, and rank 0's result --

# Variables of the environment that are set here, or that would decide for one side what has to be the same for both.
OVERRIDDEN = ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "AB_TASK")


@dataclass(frozen=True)
class Setup:
    """What is the same for all runs."""

    module: str  # what each rank runs
    task: dict[str, Any]  # what the ranks are to do, in AB_TASK
    both: Variables
    softrnic: Path | None
    folder: Path
    limit: int  # seconds for one run
    fabric: str  # name of the software network, to which each run adds its own name


def environment_of(setup: Setup, side: Side, placement: Placement, run: str) -> dict[str, str]:
    """Of the rank at `placement`; `run` is the name of the run."""
    # TORCHELASTIC_USE_AGENT_STORE would have PyTorch connect to torchrun's store rather than make one at our port.
    inherited = {key: value for key, value in os.environ.items() if key not in OVERRIDDEN and not key.startswith("TORCHELASTIC_")}
    given = {
        "RANK": str(placement.rank),
        "WORLD_SIZE": str(placement.world),
        "LOCAL_RANK": str(placement.local_rank),
        "MASTER_ADDR": placement.master,
        "MASTER_PORT": str(placement.port),
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV",
        "NCCL_DEBUG_FILE": str(nccl_log_of(setup.folder, run, placement.rank)),
        "AB_TASK": json.dumps({**setup.task, "result": str(result_of(setup, run))}),
        "PYTHONUNBUFFERED": "1",
    }
    if setup.softrnic:
        given |= softrnic_environment(setup.softrnic, placement.rank, f"{setup.fabric}-{run}")
    return inherited | given | dict(setup.both) | dict(side.variables)


def result_of(setup: Setup, run: str) -> Path:
    """The file that rank 0 writes."""
    return setup.folder / f"{run}.json"


def run_side(setup: Setup, side: Side, placements: list[Placement], run: str) -> dict[str, Any] | None:
    """Runs `side` with the ranks of this machine; rank 0's result, if it is one of them."""
    begin = time.monotonic()
    setup.folder.mkdir(parents=True, exist_ok=True)
    ranks = [Rank(one.rank, setup.module, environment_of(setup, side, one, run)) for one in placements]
    run_ranks(ranks, setup.folder, run, setup.limit)
    if all(one.rank for one in placements):
        return None
    # "seconds" is the whole run with its start, unless the rank has measured it.
    return {"seconds": time.monotonic() - begin, **read_json(result_of(setup, run))}
