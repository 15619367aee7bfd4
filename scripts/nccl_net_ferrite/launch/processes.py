"""Processes of one run, one for each rank on this machine: started together, watched, and ended with all that they started."""

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .. import signals
from ..errors import Invalid
from . import python

# How often ranks are looked at.
INTERVAL_S = 0.02
# How long a rank may take to end after SIGTERM, and its process group after SIGKILL.
END_LIMIT_S = 5.0


@dataclass(frozen=True)
class Rank:
    number: int
    module: str  # that it runs, such as "nccl_net_ferrite.matrix.rank"
    environment: dict[str, str]
    ends_with: int = 0  # exit status that the process has to end with; below 0 is a signal


class RankProcess:
    """Leads a process group of its own, which has the number of the process."""

    def __init__(self, rank: Rank, output: Path, blocked: set[signal.Signals]):
        """With `blocked` as the mask of blocked signals."""
        self.rank = rank
        with open(output, "w") as file:
            self.popen = subprocess.Popen(
                python.command(rank.module),
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
            with signals.blocked() as before:
                started.append(RankProcess(rank, output_of(folder, run, rank.number), before))
        wait(started, folder, run, limit)
    finally:
        with signals.blocked():
            end(started)


def wait(processes: list[RankProcess], folder: Path, run: str, limit: int) -> None:
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


def end(processes: list[RankProcess]) -> None:
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
