"""Runs a case with one NCCL: its ranks, their environment, what they left."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from .. import evidence
from ..evidence import Evidence
from ..files import read_json
from ..launch import processes, softrnic
from . import counting
from .cases import FEW_SIZES, Case
from .results import RankResult

# What each rank runs.
RANK = "nccl_net_ferrite.matrix.rank"
# Variables of the environment that are set here, or that would decide what the case decides.
OVERRIDDEN = (
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NET_FORCE_FLUSH",
    "NCCL_PXN_DISABLE",
    "NCCL_IB_TIMEOUT",
    "NCCL_IB_RETRY_CNT",
)
USAGE = re.compile(r"at most (\d+) queue pairs, .* memory regions of (\d+) bytes; GPU memory (\d+) by address, (\d+) by dma-buf")
# The line of NCCL's log about the choice for an operation: numbers up to 2.21, names in later ones.
CHOICE = re.compile(r"Algo (\w+) proto (\w+)")
NUMBERED = {"algo": {"0": "Tree", "1": "Ring"}, "proto": {"0": "LL", "1": "LL128", "2": "Simple"}}


@dataclass(frozen=True)
class Setup:
    """What is the same for all cases."""

    libnccl: str
    libcuda: str
    plugin: Path
    network: str
    softrnic: Path | None
    sizes: list[int]
    folder: Path
    limit: int
    counter: Path | None  # the layer that counts calls


@dataclass(frozen=True)
class Usage:
    """What the software device writes at the end of a rank: the most that it had at a time."""

    queue_pairs: int
    registered_bytes: int
    by_address: int
    by_dmabuf: int


@dataclass(frozen=True)
class Outcome:
    """What a case left: for each rank that lived, by its number."""

    case: Case
    results: dict[int, RankResult]
    evidence: dict[int, Evidence]
    logs: dict[int, str]
    usage: dict[int, Usage]
    pids: dict[int, int]
    choices: set[tuple[str, str]]  # algorithms and protocols that NCCL used, as its log tells
    reads: int | None  # RDMA READs, if they were counted
    calls: counting.Calls | None  # of all ranks, if they were counted

    def nccl_version(self) -> str:
        return next((result.version for result in self.results.values()), "?")


def run_case(setup: Setup, case: Case) -> Outcome:
    """Raises Invalid if a rank does not end as it should."""
    name = case.name()
    trace = setup.folder / f"{name}.reads"
    for stale in setup.folder.glob(f"{name}[.-]*"):
        stale.unlink()
    victim = case.ranks - 1 if case.scenario == "abort" else None
    ranks = [
        processes.Rank(number, RANK, environment(setup, case, number, trace), -9 if number == victim else 0) for number in range(case.ranks)
    ]
    processes.run_ranks(ranks, setup.folder, name, setup.limit)
    living = [number for number in range(case.ranks) if number != victim]
    outputs = {n: processes.output_of(setup.folder, name, n).read_text(errors="replace") for n in range(case.ranks)}
    logs = {n: processes.nccl_log_of(setup.folder, name, n).read_text(errors="replace") for n in range(case.ranks)}
    used = {n: usage_of(outputs[n]) for n in living}
    calls = [counted for n in living if (counted := counting.read(outputs[n]))]
    return Outcome(
        case=case,
        results={n: RankResult.from_json(read_json(Path(f"{result_of(setup, name)}{n}.json"))) for n in living},
        evidence={n: evidence.read(log) for n, log in logs.items()},
        logs=logs,
        usage={n: usage for n, usage in used.items() if usage},
        pids={n: int(output.split()[1]) for n, output in outputs.items() if output.startswith("process ")},
        choices={choice for log in logs.values() for choice in choices_of(log)},
        reads=len(trace.read_text().splitlines()) if trace.exists() else 0 if setup.softrnic else None,
        calls=counting.sum_of(calls) if calls else None,
    )


def environment(setup: Setup, case: Case, rank: int, trace: Path) -> dict[str, str]:
    name = case.name()
    inherited = {key: value for key, value in os.environ.items() if key not in OVERRIDDEN}
    task = {
        "scenario": case.scenario,
        "libnccl": setup.libnccl,
        "libcuda": setup.libcuda,
        "sizes": sizes_of(setup, case),
        "operations": case.operations(),
        "id": str(setup.folder / f"{name}.id"),
        "result": result_of(setup, name),
        "limit": setup.limit,
        "most": max(setup.sizes),
    }
    given = {
        "RANK": str(rank),
        "WORLD_SIZE": str(case.ranks),
        "LOCAL_RANK": str(rank),
        "MATRIX_TASK": json.dumps(task),
        "NCCL_NET": setup.network,
        **plugin_of(setup, case),
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV,TUNING",
        "NCCL_DEBUG_FILE": str(processes.nccl_log_of(setup.folder, name, rank)),
        "PYTHONUNBUFFERED": "1",
        # Each rank is a machine of its own to NCCL, so that all data goes through the network.
        "NCCL_HOSTID": f"rank{rank}",
    }
    if setup.softrnic:
        # A rule that has next to no effect, but writes a line for each RDMA READ: a flush is one.
        given |= softrnic.environment(setup.softrnic, rank, f"{os.getpid()}-{name}")
        given |= {"SOFTRNIC_FAULTS": "delay=1us opcode=read", "SOFTRNIC_TRACE": str(trace)}
    return inherited | given | case.variables(bool(setup.softrnic))


def plugin_of(setup: Setup, case: Case) -> dict[str, str]:
    """The layer that counts calls is put before the plugin in cases that are about calls, nowhere else."""
    if setup.network != "Ferrite":
        return {"NCCL_NET_PLUGIN": "none"}
    plugin = str(setup.plugin.resolve())
    if setup.counter and case.is_counted():
        return {"NCCL_NET_PLUGIN": str(setup.counter), "COUNTED_PLUGIN": plugin}
    return {"NCCL_NET_PLUGIN": plugin}


def sizes_of(setup: Setup, case: Case) -> list[int]:
    return setup.sizes if case.part == "collectives" else [size for size in FEW_SIZES if size <= max(setup.sizes)] or setup.sizes


def result_of(setup: Setup, name: str) -> str:
    return str(setup.folder / f"{name}-result")


def usage_of(output: str) -> Usage | None:
    found = USAGE.search(output)
    return Usage(*map(int, found.groups())) if found else None


def choices_of(log: str) -> set[tuple[str, str]]:
    """Of one log: (algorithm, protocol), as NCCL_ALGO and NCCL_PROTO write them."""
    names = {"TREE": "Tree", "RING": "Ring", "SIMPLE": "Simple"}

    def name_of(kind: str, word: str) -> str:
        return NUMBERED[kind].get(word, names.get(word, word))

    return {(name_of("algo", algo), name_of("proto", proto)) for algo, proto in CHOICE.findall(log)}
