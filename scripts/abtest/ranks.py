"""Processes of one run, one for each rank on this machine: started together, watched, none left behind."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .ending import undisturbed
from .plan import Invalid


# How often ranks are looked at.
GLANCE_S = 0.02


@dataclass(frozen=True)
class Rank:
    number: int
    program: Path
    environment: dict[str, str]
    ends_with: int = 0  # what the process has to end with; below 0 is a signal


def run(ranks: list[Rank], folder: Path, name: str, limit: int) -> None:
    """Until all have ended as they should; the first that has not ends the run."""
    processes = []
    try:
        for rank in ranks:
            # Nothing comes between the start of a process and the note that it is ours.
            with open(output_of(folder, name, rank.number), "w") as output, undisturbed() as before:
                processes.append(subprocess.Popen(
                    [sys.executable, str(rank.program)], env=rank.environment,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                    preexec_fn=partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)))
        wait(ranks, processes, folder, name, limit)
    finally:
        with undisturbed():
            end(processes)


def wait(ranks: list[Rank], processes: list[subprocess.Popen], folder: Path, name: str, limit: int) -> None:
    deadline = time.monotonic() + limit
    is_over = False
    while not is_over:
        is_over = all(process.poll() is not None for process in processes)
        for rank, process in zip(ranks, processes):
            if process.poll() not in (None, rank.ends_with):
                raise Invalid(failure(folder, name, rank.number, f"ended with {process.returncode}"))
        if not is_over and time.monotonic() > deadline:
            late = next(rank.number for rank, process in zip(ranks, processes) if process.poll() is None)
            raise Invalid(failure(folder, name, late, f"not done after {limit} s (--limit)"))
        time.sleep(GLANCE_S)


def output_of(folder: Path, name: str, rank: int) -> Path:
    return folder / f"{name}-rank{rank}.out"


def nccl_log_of(folder: Path, name: str, rank: int) -> Path:
    return folder / f"{name}-rank{rank}.nccl.log"


def failure(folder: Path, name: str, rank: int, what: str) -> str:
    """What went wrong, with the last words of the rank."""
    words = [f"run {name}, rank {rank}: {what}"]
    for path in (output_of(folder, name, rank), nccl_log_of(folder, name, rank)):
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        warnings = [line for line in lines if "WARN" in line or "Error" in line][-6:]
        words += [f"{path}:", *(warnings or lines[-6:])]
    return "\n  ".join(words)


def end(processes: list[subprocess.Popen]) -> None:
    """No process of ours stays."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        alive = [process for process in processes if process.poll() is None]
        for process in alive:
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                pass
        for process in alive:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                pass


def on_softrnic(library: Path, rank: int, fabric: str) -> dict[str, str]:
    """Two ranks of one machine are two nodes to NCCL, on a software network that no other run shares."""
    path = [str(library.resolve()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        "LD_LIBRARY_PATH": ":".join(path), "NCCL_IBVERBS_LIB": str(library.resolve() / "libibverbs.so.1"),
        "SOFTRNIC_FABRIC": f"ab-{fabric}", "SOFTRNIC_QUIET": "1",
        "NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_MERGE_NICS": "0", "NCCL_GIN_TYPE": "0",
    }
