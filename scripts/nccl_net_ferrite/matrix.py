"""Drives NCCL itself over Ferrite: every operation, LL and Simple, rings and trees, in place and not, GPUDirect and not.

    python scripts/matrix.py --softrnic                              # the system's libnccl.so.2, on the software device
    python scripts/matrix.py --softrnic --libnccl A --libnccl B      # these two, unmodified
    python scripts/matrix.py --parts abort,flush --gdr on            # on this machine's RDMA devices

It needs libnccl.so.2, a CUDA driver and a GPU (several ranks may share one), but neither PyTorch nor a compiler. All ranks run on this
machine, each with an NCCL_HOSTID of its own, so that all data goes through the network. Parts:

    collectives   every operation and size, each with the protocol and the algorithm that it is told to use
    setups        machines on which GPU memory can be registered by dma-buf, by address, both ways or not at all
    flush         NCCL_NET_FORCE_FLUSH: received data is flushed, and without it there is nothing for it
    register      sends from and into memory that the application has registered
    odd           every operation with odd numbers of elements; NCCL chooses protocol and algorithm
    faults        every operation while the software device loses packets, ports fall and queue pairs fail
    nodes         four ranks as two machines of two GPUs, each GPU with a NIC: NCCL sends over the other GPU (PXN) and groups receives
    abort         a rank is killed in the middle of an all_reduce: what the others see, and when

Without --parts all are run but nodes, which needs four GPUs, and faults where the device is not software.

Exit code 0: all right. 1: something is wrong. 2: it could not be tried. 130: interrupted; the cases that were done are in the report.
report.md and raw.json have the details.
"""

import argparse
import ctypes.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from . import evidence, exit_codes, files, launch, options, repository
from .evidence import Evidence
from .exit_codes import GOOD, WRONG, Invalid
from .files import Library, read_json
from .nccl import OPERATIONS, Driver
from .networks import check_plugin
from .options import size_text
from .repository import INCLUDE

# -- what is tested: cases, and the environment of each --

# Ways in which GPU memory can be registered. The software device can be each kind of machine; elsewhere the machine decides.
SOFT_GDR = ["off", "dmabuf", "peermem", "both"]
REAL_GDR = ["off", "on"]
PROTOS, ALGOS = ["LL", "Simple"], ["Ring", "Tree"]
# Operations and sizes of a case for which a few are enough.
FEW_OPERATIONS, FEW_SIZES = ["all_reduce", "send_recv"], [8, 4096, 1 << 20, 32 << 20]
# For the case of a rank that dies: NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT. Each try takes 4.096 us times 2 to the power of the timeout.
TIMEOUT, RETRIES = 15, 3
# Numbers of bytes for the part odd: 1, 3, 7, 1023, 4097, 65,537 and 1,048,581 elements.
ODD_SIZES = [4 * count for count in (1, 3, 7, 1023, 4097, 65537, 1048581)]
# What the software device does in the part faults: queue pairs fail, ports are down for a while, and packets are lost.
FAULTS = "qp-error message=20 times=2; port-down=200ms message=40 times=2; drop chance=0.002"
FAULT_KINDS = [rule.split()[0].split("=")[0] for rule in FAULTS.split("; ")]
# GPUs and ranks of a machine in the part nodes.
NODE_GPUS, NODES = 2, 2
RETRIES_END_S = 4.096e-6 * 2**TIMEOUT * (RETRIES + 1)


@dataclass(frozen=True)
class Case:
    """One run."""

    part: str  # of PARTS
    ranks: int
    gdr: str
    scenario: str = "collectives"  # method of rank.Rank
    proto: str = ""
    algo: str = ""
    is_flushing: bool = False

    def name(self) -> str:
        words = [self.part, str(self.ranks), self.gdr, self.proto, self.algo, "flush" if self.is_flushing else ""]
        return "-".join(filter(None, words)).lower()

    def title(self) -> str:
        choice = " ".join(filter(None, [self.proto, self.algo]))
        return {
            "collectives": choice,
            "setups": "capability and registration",
            "flush": f"NCCL_NET_FORCE_FLUSH={int(self.is_flushing)}",
            "register": "registered buffers (ncclCommRegister)",
            "odd": "odd numbers of elements",
            "faults": "under faults of the device",
            "nodes": "two machines of two GPUs",
            "abort": "a rank killed in the middle",
        }[self.part]

    def is_counted(self) -> bool:
        """Whether it is about which calls NCCL makes."""
        return self.part in ("setups", "flush", "register")

    def operations(self) -> list[str]:
        if self.part in ("setups", "flush", "register", "abort"):
            return FEW_OPERATIONS
        # NCCL refuses the other operations if NCCL_ALGO is Tree.
        return [name for name, (_, has_choice) in OPERATIONS.items() if has_choice or self.algo != "Tree"]

    def variables(self, on_softrnic: bool) -> dict[str, str]:
        chosen = {"NCCL_PROTO": self.proto, "NCCL_ALGO": self.algo, "NCCL_NET_FORCE_FLUSH": "1" if self.is_flushing else ""}
        is_wanted = self.gdr != "off" or self.part == "setups"
        chosen["NCCL_NET_GDR_LEVEL"] = "SYS" if is_wanted else "LOC"
        if on_softrnic:
            chosen["SOFTRNIC_GPU"] = "none" if self.gdr == "off" else self.gdr
            chosen["SOFTRNIC_STAT"] = "1"
        if self.part == "register":
            # Unless PXN is disabled, NCCL 2.24 and 2.25 register no buffer for sends and receives where NVLink joins all GPUs of a machine,
            # also if it has one GPU only (addP2pToPlan in enqueue.cc).
            chosen["NCCL_PXN_DISABLE"] = "1"
        if self.part == "abort":
            chosen |= {"NCCL_IB_TIMEOUT": str(TIMEOUT), "NCCL_IB_RETRY_CNT": str(RETRIES)}
        return {name: value for name, value in chosen.items() if value}


def collectives(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    return [Case("collectives", count, way, proto=proto, algo=algo) for count in ranks for way in gdr for proto in PROTOS for algo in ALGOS]


def setups(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    """softrnic plays all ways to register GPU memory, whatever `gdr` says. A machine with NICs has only its own: `on`."""
    ways = SOFT_GDR if on_softrnic else [way for way in gdr if way != "off"]
    return [Case("setups", ranks[0], way, proto="Simple", algo="Ring") for way in ways]


def flush(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    """With protocol Simple: NCCL does not flush what LL received."""
    return [
        Case("flush", ranks[0], way, proto="Simple", algo="Ring", is_flushing=is_flushing)
        for way in gdr
        if way != "off"
        for is_flushing in (False, True)
    ]


def register(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    """On a machine that registers GPU memory both ways: NCCL 2.21 registers the application's buffers by address, later ones by dma-buf."""
    return [Case("register", ranks[0], "both" if on_softrnic else "on", scenario="registered")]


def abort(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    return [Case("abort", ranks[0], way, scenario="abort") for way in gdr]


def odd(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    return [Case("odd", ranks[0], way) for way in gdr]


def faults(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    return [Case("faults", ranks[0], way) for way in gdr if on_softrnic]


def nodes(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    """NCCL uses PXN with GPUDirect only."""
    return [Case("nodes", NODES * NODE_GPUS, way) for way in gdr]


PARTS = {
    "collectives": collectives,
    "setups": setups,
    "flush": flush,
    "register": register,
    "odd": odd,
    "faults": faults,
    "nodes": nodes,
    "abort": abort,
}


def cases_of(parts: list[str], ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    allowed = SOFT_GDR if on_softrnic else REAL_GDR
    for way in gdr:
        if way not in allowed:
            where = "on the software device" if on_softrnic else "without --softrnic"
            raise Invalid(f"--gdr {way}: {where} it is one of {', '.join(allowed)}")
    return [case for part in parts for case in PARTS[part](ranks, gdr, on_softrnic)]


# -- what the ranks of a case write, and the report that is made of all cases, with the form that both have as JSON --


@dataclass(frozen=True)
class OperationResult:
    """One operation at one size on one rank."""

    operation: str
    size: int
    in_place: bool
    wrong: str  # "" if every element is right
    s: float | None = None  # that it took; None if it was not timed


@dataclass(frozen=True)
class AbortResult:
    """What a rank saw of the death of another."""

    code: int  # NCCL's error; 0 if there was none
    error: str
    error_s: float  # from the first operation to the error
    abort_s: float | None  # that ncclCommAbort took; None if it was not called, because in this NCCL it never returns


@dataclass(frozen=True)
class RankResult:
    """What one rank writes at its end."""

    gpu: str
    version: str  # of NCCL
    rows: list[OperationResult]
    registered_bytes: int = 0  # by the application
    abort: AbortResult | None = None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "RankResult":
        abort = AbortResult(**raw["abort"]) if raw["abort"] else None
        return cls(raw["gpu"], raw["version"], [OperationResult(**row) for row in raw["rows"]], raw["registered_bytes"], abort)


@dataclass
class Findings:
    """Of a check: what is wrong, and what else was seen."""

    wrong: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    def add(self, more: "Findings") -> None:
        self.wrong += more.wrong
        self.seen += more.seen


@dataclass(frozen=True)
class CaseResult:
    """A line of the report."""

    nccl: str
    case: Case
    findings: Findings
    results: int  # that were compared, on all ranks
    operations: list[OperationResult]  # of the first rank, with the time of the slowest, as far as they were timed

    @classmethod
    def of_ranks(cls, nccl: str, case: Case, findings: Findings, ranks: list[RankResult]) -> "CaseResult":
        operations = []
        for rows in zip(*(rank.rows for rank in ranks)):
            times = [row.s for row in rows if row.s is not None]
            if times:
                first = rows[0]
                operations.append(OperationResult(first.operation, first.size, first.in_place, first.wrong, max(times)))
        return cls(nccl, case, findings, sum(len(rank.rows) for rank in ranks), operations)

    def line(self) -> str:
        wrong = "wrong: " + "; ".join(self.findings.wrong) if self.findings.wrong else "right"
        seen = "; ".join(self.findings.seen).replace("|", "/")
        return f"| {self.nccl} | {self.case.ranks} | {self.case.gdr} | {self.case.title()} | {wrong} | {seen} |"

    def to_json(self) -> dict[str, Any]:
        return {
            "nccl": self.nccl,
            "case": asdict(self.case),
            "wrong": self.findings.wrong,
            "told": self.findings.seen,
            "line": self.line(),
            "results": self.results,
            "operations": [asdict(one) for one in self.operations],
        }


@dataclass(frozen=True)
class Nccl:
    """A library that was tested."""

    version: str
    sha256: str


@dataclass(frozen=True)
class About:
    """How the cases were run: raw.json has these names, in this order."""

    command: str
    network: str
    sizes: list[int]
    gpus: list[str]
    nccl: list[Nccl]
    plugin: Library | None  # None if it is not Ferrite that was tested
    softrnic: bool


@dataclass(frozen=True)
class Report:
    about: About
    wrong: list[str]  # what no single case shows
    rows: list[CaseResult]

    def is_good(self) -> bool:
        return not self.wrong and not any(row.findings.wrong for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """raw.json."""
        return {"about": asdict(self.about), "wrong": self.wrong, "rows": [row.to_json() for row in self.rows]}


# -- the layer that counts calls between NCCL and a plugin, built where there is a C compiler, and the line that it writes --

COUNTER = Path(__file__).resolve().parent / "matrix_counting.c"
COUNTED = re.compile(r"counted: (\d+) sends, (\d+) truncated, (\d+) flushes, GPU memory (\d+) by address, (\d+) by dma-buf")


@dataclass(frozen=True)
class Calls:
    """Of one rank."""

    sends: int
    truncated: int
    flushes: int
    by_address: int
    by_dmabuf: int


def build_counter(folder: Path) -> Path | None:
    """The library; None where it cannot be built."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    library = folder / "libnccl-net-counting.so"
    if not compiler:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [
        compiler,
        "-O1",
        "-shared",
        "-fPIC",
        "-pthread",
        "-Wl,-z,nodelete",
        "-I",
        INCLUDE,
        "-o",
        library,
        COUNTER,
        "-ldl",
    ]
    return library if subprocess.run(command, capture_output=True, check=False).returncode == 0 else None


def calls_counted(output: str) -> Calls | None:
    found = COUNTED.search(output)
    return Calls(*map(int, found.groups())) if found else None


def sum_of_calls(calls: list[Calls]) -> Calls:
    columns = zip(*((one.sends, one.truncated, one.flushes, one.by_address, one.by_dmabuf) for one in calls))
    return Calls(*map(sum, columns))


# -- runs a case with one NCCL: its ranks, their environment, what they left --

# What each rank runs.
RANK = "nccl_net_ferrite.matrix_rank"
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
    "NCCL_TOPO_FILE",
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
    traced: list[str] | None  # what a rule did to each message that it concerned: READs, or faults in the part faults
    calls: Calls | None  # of all ranks, if they were counted

    def nccl_version(self) -> str:
        return next((result.version for result in self.results.values()), "?")


def run_case(setup: Setup, case: Case) -> Outcome:
    """Raises Invalid if a rank does not end as it should."""
    name = case.name()
    trace = setup.folder / f"{name}.trace"
    for stale in setup.folder.glob(f"{name}[.-]*"):
        stale.unlink()
    victim = case.ranks - 1 if case.scenario == "abort" else None
    ranks = [
        launch.Rank(number, RANK, environment(setup, case, number, trace), -9 if number == victim else 0) for number in range(case.ranks)
    ]
    launch.run_ranks(ranks, setup.folder, name, setup.limit)
    living = [number for number in range(case.ranks) if number != victim]
    outputs = {n: launch.output_of(setup.folder, name, n).read_text(errors="replace") for n in range(case.ranks)}
    logs = {n: launch.nccl_log_of(setup.folder, name, n).read_text(errors="replace") for n in range(case.ranks)}
    used = {n: usage_of(outputs[n]) for n in living}
    calls = [counted for n in living if (counted := calls_counted(outputs[n]))]
    return Outcome(
        case=case,
        results={n: RankResult.from_json(read_json(Path(f"{result_of(setup, name)}{n}.json"))) for n in living},
        evidence={n: evidence.read(log) for n, log in logs.items()},
        logs=logs,
        usage={n: usage for n, usage in used.items() if usage},
        pids={n: int(output.split()[1]) for n, output in outputs.items() if output.startswith("process ")},
        choices={choice for log in logs.values() for choice in choices_of(log)},
        traced=traced(trace) if setup.softrnic else None,
        calls=sum_of_calls(calls) if calls else None,
    )


def traced(trace: Path) -> list[str]:
    """The actions in the lines of a trace of the software device, such as drop and delay."""
    lines = trace.read_text().splitlines() if trace.exists() else []
    return [re.split("[= ]", line.rpartition(": ")[2])[0] for line in lines]


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
        "NCCL_DEBUG_FILE": str(launch.nccl_log_of(setup.folder, name, rank)),
        "PYTHONUNBUFFERED": "1",
        # Each rank is a machine of its own to NCCL, so that all data goes through the network.
        "NCCL_HOSTID": f"rank{rank}",
    }
    if setup.softrnic:
        # A rule that has next to no effect, but writes a line for each RDMA READ: a flush is one.
        given |= launch.softrnic_environment(setup.softrnic, rank, f"{os.getpid()}-{name}")
        rules = "delay=1us opcode=read" if case.part != "faults" else FAULTS
        given |= {"SOFTRNIC_FAULTS": rules, "SOFTRNIC_TRACE": str(trace)}
    if case.part == "nodes":
        given |= {"NCCL_HOSTID": f"node{rank // NODE_GPUS}", "NCCL_TOPO_FILE": str(topology_file(setup, rank // NODE_GPUS))}
    return inherited | given | case.variables(bool(setup.softrnic))


def topology_file(setup: Setup, node: int) -> Path:
    """Of a machine that has NODE_GPUS of this machine's GPUs, each beside a NIC of its own; NCCL looks up the rest."""
    driver = Driver(setup.libcuda)
    if driver.count() < NODES * NODE_GPUS:
        raise Invalid(f"the part nodes needs {NODES * NODE_GPUS} GPUs, {setup.libcuda} sees {driver.count()}")
    pairs = "".join(
        f'''
    <pci busid="ffff:{2 * at + 1:02x}:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="{driver.pci_bus_id(node * NODE_GPUS + at)}" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <pci busid="ffff:{2 * at + 2:02x}:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="softrnic{at}"/></nic>
      </pci>
    </pci>'''
        for at in range(NODE_GPUS)
    )
    path = setup.folder / f"node{node}.xml"
    cpu = '<cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">'
    path.write_text(f'<system version="1">\n  {cpu}{pairs}\n  </cpu>\n</system>\n')
    return path


def plugin_of(setup: Setup, case: Case) -> dict[str, str]:
    """The layer that counts calls is put before the plugin in cases that are about calls, nowhere else."""
    if setup.network != "Ferrite":
        return {"NCCL_NET_PLUGIN": "none"}
    plugin = str(setup.plugin.resolve())
    if setup.counter and case.is_counted():
        return {"NCCL_NET_PLUGIN": str(setup.counter), "COUNTED_PLUGIN": plugin}
    return {"NCCL_NET_PLUGIN": plugin}


def sizes_of(setup: Setup, case: Case) -> list[int]:
    if case.part == "odd":
        return ODD_SIZES
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


# -- whether the outcome of a case is right --

NO_GDR = "no GPUDirect RDMA"
# Errors of NCCL that say that a peer or the system failed.
SYSTEM_ERROR, REMOTE_ERROR = 2, 6
# A connection of a sender: its rank, and that of the process that sends for it.
PXN = re.compile(r": (\d+)\[\w+\] -> \d+\[\w+\] \[send\] via NET/[^/\s]+/\d+\((\d+)\)")
# What Ferrite's log says of an NCCL that forgets the errors of its network (2.26 and 2.27).
DROPPED = "do not report this error"


def check_case(outcome: Outcome, network: str) -> Findings:
    """All rules that hold for the case."""
    case, found = outcome.case, Findings()
    try:
        gdr = evidence.check([outcome.evidence[rank] for rank in sorted(outcome.evidence)], network, case.name())
    except Invalid as why:
        return Findings(wrong=[str(why)])
    found.seen.append(f"via NET/{network}" + ("/…/GDRDMA" if gdr == "on" else ""))
    expected = "off" if case.gdr == "off" else "on"
    if gdr != expected:
        found.wrong.append(f"GPUDirect is {gdr}, not {expected}")
    found.wrong += wrong_values(outcome)
    found.seen.append(f"{sum(len(result.rows) for result in outcome.results.values())} results")
    if case.part == "collectives":
        found.add(check_choice(outcome))
    elif case.part == "setups":
        found.add(check_registration(outcome, network))
    elif case.part == "flush":
        found.add(check_flushes(outcome))
    elif case.part == "register":
        found.add(check_application_buffers(outcome))
    elif case.part == "faults":
        found.add(check_faults(outcome))
    elif case.part == "nodes":
        found.add(check_nodes(outcome))
    elif case.part == "abort":
        found.add(check_abort(outcome, network))
    found.add(check_calls(outcome))
    return found


def wrong_values(outcome: Outcome) -> list[str]:
    """The first operation with a wrong value, and how many there are."""
    found = [(rank, row) for rank, result in outcome.results.items() for row in result.rows if row.wrong]
    if not found:
        return []
    rank, row = found[0]
    place = "in place" if row.in_place else "out of place"
    others = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return [f"rank {rank}, {row.operation} of {size_text(row.size)} {place}: {row.wrong}{others}"]


def check_choice(outcome: Outcome) -> Findings:
    """NCCL used the algorithm and the protocol that were asked for, as far as its log tells."""
    case = outcome.case
    others = sorted(used for used in outcome.choices if used != (case.algo, case.proto))
    if others:
        return Findings(wrong=[f"NCCL used {' '.join(others[0])}"])
    return Findings(seen=[] if outcome.choices else ["NCCL's log does not tell what it used"])


def peak(outcome: Outcome, kind: str) -> int:
    """The most of all ranks; `kind` is a field of Usage."""
    return max((getattr(usage, kind) for usage in outcome.usage.values()), default=0)


def check_registration(outcome: Outcome, network: str) -> Findings:
    """GPU memory is registered in the way that the machine has, and a line in the log says if it has none."""
    case, found = outcome.case, Findings()
    if network == "Ferrite":
        lines = [line for log in outcome.logs.values() for line in log.splitlines() if NO_GDR in line]
        if bool(lines) != (case.gdr == "off"):
            found.wrong.append(f'{len(lines)} lines say "{NO_GDR}"')
        if lines:
            found.seen.append('log: "' + lines[0][lines[0].index(NO_GDR) :] + '"')
    if not outcome.usage:
        return found
    by_address, by_dmabuf = peak(outcome, "by_address"), peak(outcome, "by_dmabuf")
    found.seen.append(f"GPU memory registered at a time: {by_address} by address, {by_dmabuf} by dma-buf")
    # A single one by address may be a trial of what the machine can do.
    is_right = {
        "off": by_address == 0 and by_dmabuf == 0,
        "peermem": by_address > 1 and by_dmabuf == 0,
        "dmabuf": by_address == 0 and by_dmabuf > 1,
        "both": by_address <= 1 and by_dmabuf > 1,
        "on": by_address + by_dmabuf > 1,
    }[case.gdr]
    if not is_right:
        found.wrong.append(f"registered {by_address} by address and {by_dmabuf} by dma-buf")
    return found


def check_flushes(outcome: Outcome) -> Findings:
    """There are flushes where they are asked for, and none elsewhere. A READ is a flush: NCCL reads nothing else."""
    if outcome.traced is None:
        return Findings(seen=["READs are not counted on this device"])
    flushes = len(outcome.traced)
    found = Findings(seen=[f"{flushes} flushes"])
    if (flushes > 0) != outcome.case.is_flushing:
        found.wrong.append(f"{flushes} flushes")
    if outcome.usage:
        found.seen.append(f"at most {peak(outcome, 'queue_pairs')} queue pairs")
    return found


def check_application_buffers(outcome: Outcome) -> Findings:
    """The application's buffers are registered with the device."""
    if not outcome.usage:
        return Findings()
    registered, least = peak(outcome, "registered_bytes"), max(result.registered_bytes for result in outcome.results.values())
    found = Findings(seen=[f"{registered >> 20} MiB registered; the application's buffers are {least >> 20} MiB"])
    if registered < least:
        found.wrong.append(f"at most {registered} bytes were registered: not the application's {least}")
    return found


def check_faults(outcome: Outcome) -> Findings:
    """Each fault has happened."""
    counts = Counter(outcome.traced)
    missing = [kind for kind in FAULT_KINDS if not counts[kind]]
    found = Findings(seen=["faults: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))])
    if missing:
        found.wrong.append(f"no {' and no '.join(missing)} has happened")
    return found


def check_nodes(outcome: Outcome) -> Findings:
    """With GPUDirect some data is sent over the other GPU's process: its rank stands in brackets behind the device."""
    senders = [sender for log in outcome.logs.values() for sender in PXN.findall(log)]
    over_others = sum(rank != proxy for rank, proxy in senders)
    found = Findings(seen=[f"{over_others} connections over the other GPU (PXN)"])
    if outcome.case.gdr != "off" and not over_others:
        found.wrong.append("no connection over the other GPU")
    return found


def check_calls(outcome: Outcome) -> Findings:
    """What NCCL called, where that was counted."""
    case, calls = outcome.case, outcome.calls
    if not calls:
        return Findings()
    found = Findings(
        seen=[
            f"calls: {calls.by_address} of regMr for GPU memory, {calls.by_dmabuf} of regMrDmaBuf, {calls.flushes} of iflush, "
            f"{calls.sends} of isend, {calls.truncated} of them truncated"
        ]
    )
    expected = {"off": (False, False), "peermem": (True, False), "dmabuf": (False, True), "both": (False, True)}
    ways = (calls.by_address > 0, calls.by_dmabuf > 0)
    if case.part == "setups" and case.gdr in expected and ways != expected[case.gdr]:
        found.wrong.append(f"NCCL called regMr for GPU memory {calls.by_address} times, regMrDmaBuf {calls.by_dmabuf} times")
    if case.part == "flush" and (calls.flushes > 0) != case.is_flushing:
        found.wrong.append(f"{calls.flushes} calls of iflush")
    # NCCL 2.21 offers the whole of a registered buffer to a receiver that posts a step of it at a time; later ones post the whole.
    if case.part == "register" and outcome.nccl_version().startswith("2.21.") and not calls.truncated:
        found.wrong.append("no send was truncated: the registered buffers were not used")
    return found


def check_abort(outcome: Outcome, network: str) -> Findings:
    """The ranks that live get an error in time, whose text names the dead process, and ncclCommAbort returns where this NCCL's does."""
    found = Findings()
    victim = outcome.case.ranks - 1
    for rank, result in sorted(outcome.results.items()):
        abort = result.abort
        if not abort:
            found.wrong.append(f"rank {rank}: no result of ncclCommAbort")
            continue
        if abort.code not in (SYSTEM_ERROR, REMOTE_ERROR):
            if network == "Ferrite" and DROPPED in outcome.logs[rank]:
                found.seen.append(f"rank {rank}: this NCCL does not tell errors of its network")
            else:
                found.wrong.append(f"rank {rank}: {abort.error}")
        end = (
            "ncclCommAbort, which in this NCCL never returns, was not called"
            if abort.abort_s is None
            else f"ncclCommAbort took {abort.abort_s:.2f} s"
        )
        found.seen.append(
            f"rank {rank}: error {abort.code} after {abort.error_s:.2f} s (the device gives up after {RETRIES_END_S:.2f} s), {end}"
        )
        if network == "Ferrite":
            pid = outcome.pids.get(victim)
            named = re.compile(rf"(process|pid) {pid}\b")
            lines = [line for line in outcome.logs[rank].splitlines() if "WARN" in line and named.search(line)]
            if rank in neighbours(outcome.case) and not lines:
                found.wrong.append(f"rank {rank}: no warning names the dead process {pid}")
            found.seen += [f'log: "{line[line.index("WARN") :]}"' for line in lines[:1]]
    return found


def neighbours(case: Case) -> set[int]:
    """The ranks beside the last one in a ring: these surely had connections to it."""
    return {(case.ranks - 2) % case.ranks, 0}


def compare_flush_cases(cases: list[Case], outcomes: Mapping[Case, Outcome]) -> list[str]:
    """Without flushes there is no queue pair for them: compares each case that does not flush with the one that does."""
    wrong = []
    for case in cases:
        if case.part != "flush" or case.is_flushing:
            continue
        without, with_flushes = outcomes.get(case), outcomes.get(replace(case, is_flushing=True))
        if not without or not with_flushes or not without.usage or not with_flushes.usage:
            continue
        fewer, more = peak(without, "queue_pairs"), peak(with_flushes, "queue_pairs")
        if fewer >= more:
            wrong.append(f"{case.name()}: {fewer} queue pairs without flushes, {more} with them")
    return wrong


# -- the report of all cases: a table, and all numbers --

HOW = (
    "Each case is a run of fresh processes, each rank a machine of its own to NCCL. A result is one operation at one size on one "
    'rank, every element of it compared; operations that have a form in place are done in place too. "LL Tree" and the like are '
    "NCCL_PROTO and NCCL_ALGO; trees are for all_reduce alone, and sends and receives have no algorithm. Calls are those of all "
    "ranks, counted by a layer between NCCL and the plugin that is there in these cases only."
)


def write(folder: Path, report: Report) -> None:
    parts = [table(report), HOW, facts(report.about)]
    files.report(folder, f"{report.about.network} under NCCL", summary(report), parts, report.to_json())


def summary(report: Report) -> str:
    rows = report.rows
    bad = sum(bool(row.findings.wrong) for row in rows)
    more = f"; {'; '.join(report.wrong)}" if report.wrong else ""
    return f"{len(rows) - bad} of {len(rows)} cases right, {sum(row.results for row in rows)} results compared{more}"


def table(report: Report) -> str:
    head = ["| NCCL | ranks | GPUDirect | case | results | what was seen |", "|---|---:|---|---|---|---|"]
    return "\n".join([*head, *(row.line() for row in report.rows)])


def facts(about: About) -> str:
    lines = [
        f"- command: `{about.command}`",
        f"- sizes in bytes: {', '.join(map(size_text, about.sizes))}; cases that are not about collectives have fewer",
        f"- GPUs: {', '.join(about.gpus)}",
        *(f"- NCCL {one.version}: sha256 `{one.sha256}`" for one in about.nccl),
    ]
    if about.plugin:
        lines.append(f"- plugin: {about.plugin.text()}")
    if about.softrnic:
        lines.append("- on the software device")
    return "\n".join(lines)


# -- all cases with all NCCLs, and the report of them --


@dataclass
class Progress:
    """What there is to report so far."""

    rows: list[CaseResult] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    nccls: list[Nccl] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)


def run(options: argparse.Namespace) -> int:
    """Returns an exit code."""
    chosen = cases_of(options.parts, options.ranks, options.gdr, bool(options.softrnic))
    libraries = [str(path) for path in options.libnccl or [system_nccl()]]
    check_beforehand(options, libraries)
    is_counting = options.network == "Ferrite" and any(case.is_counted() for case in chosen)
    counter = build_counter(options.out.resolve()) if is_counting else None
    progress = Progress()
    try:
        for index, path in enumerate(libraries):
            run_all(setup_of(options, path, index, counter), chosen, progress)
    except KeyboardInterrupt as interrupt:
        if not progress.rows:
            raise
        progress.wrong.append(f"interrupted after {len(progress.rows)} of {len(chosen) * len(libraries)} cases")
        report_of(options, progress)
        raise KeyboardInterrupt(f"{progress.wrong[-1]}, which {options.out / 'report.md'} has") from interrupt
    return GOOD if report_of(options, progress).is_good() else WRONG


def check_beforehand(options: argparse.Namespace, libraries: list[str]) -> None:
    """All that can be known to be wrong before the first case."""
    if options.network == "Ferrite":
        check_plugin(options.plugin)
    launch.check_softrnic(options.softrnic)
    files.check_writable(options.out)
    for path in libraries:
        launch.seen_by_driver(options.libcuda, path)


def setup_of(options: argparse.Namespace, libnccl: str, index: int, counter: Path | None) -> Setup:
    """For library number `index`, which has a folder of its own."""
    folder = options.out.resolve() / f"nccl{index}"
    folder.mkdir(parents=True, exist_ok=True)
    return Setup(
        libnccl=libnccl,
        libcuda=options.libcuda,
        plugin=options.plugin,
        network=options.network,
        softrnic=options.softrnic,
        sizes=options.sizes,
        folder=folder,
        limit=options.limit,
        counter=counter,
    )


def run_all(setup: Setup, chosen: list[Case], progress: Progress) -> None:
    """All cases with one NCCL."""
    version, outcomes = "?", {}
    for case in chosen:
        outcome, findings = run_and_check(setup, case)
        ranks = []
        if outcome:
            outcomes[case] = outcome
            ranks = list(outcome.results.values())
            version = ranks[0].version
            progress.gpus = [rank.gpu for rank in ranks]
        progress.rows.append(CaseResult.of_ranks(version, case, findings, ranks))
        print(progress.rows[-1].line(), flush=True)
    progress.wrong += [f"NCCL {version}: {what}" for what in compare_flush_cases(chosen, outcomes)]
    progress.nccls.append(Nccl(version, sha256_of(Path(setup.libnccl))))


def run_and_check(setup: Setup, case: Case) -> tuple[Outcome | None, Findings]:
    """A case that cannot be run is wrong, and has no outcome; the others go on."""
    try:
        outcome = run_case(setup, case)
    except Invalid as why:
        return None, Findings(wrong=[" ".join(str(why).split())])
    return outcome, check_case(outcome, setup.network)


def report_of(options: argparse.Namespace, progress: Progress) -> Report:
    about = About(
        command=" ".join(sys.argv),
        network=options.network,
        sizes=options.sizes,
        gpus=progress.gpus,
        nccl=progress.nccls,
        plugin=files.library(options.plugin) if options.network == "Ferrite" else None,
        softrnic=bool(options.softrnic),
    )
    found = Report(about, progress.wrong, progress.rows)
    write(options.out, found)
    return found


def sha256_of(path: Path) -> str:
    """Of a file; a bare name was found by the loader."""
    return files.sha256(path) if path.is_file() else "unknown"


def system_nccl() -> str:
    found = ctypes.util.find_library("nccl")
    if not found:
        raise Invalid("no libnccl.so.2 in the system's path: name one with --libnccl")
    return found


def parse_parts(text: str) -> list[str]:
    chosen = text.split(",")
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    return chosen


def rank_counts(text: str) -> list[int]:
    return [options.number(2, 64)(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = options.parser(__doc__)
    parser.add_argument("--libnccl", action="append", metavar="FILE", help="a libnccl.so.2; may be repeated; default: the system's")
    parser.add_argument("--libcuda", default="libcuda.so.1", metavar="FILE", help="the CUDA driver; default libcuda.so.1")
    parser.add_argument("--plugin", type=Path, default=repository.PLUGIN, help="Ferrite's library")
    parser.add_argument("--network", choices=["Ferrite", "IB"], default="Ferrite", help="IB: NCCL's built-in instead")
    parser.add_argument(
        "--parts", type=parse_parts, default=[part for part in PARTS if part != "nodes"], metavar="NAME,NAME", help="of " + ", ".join(PARTS)
    )
    parser.add_argument(
        "--ranks",
        type=rank_counts,
        default=[2],
        metavar="N,N",
        help="such as 2,4; default 2. Only the collectives are run with each of them",
    )
    parser.add_argument(
        "--gdr",
        type=lambda text: text.split(","),
        default=["off"],
        metavar="WAY,WAY",
        help="GPUDirect: off, on; on the software device off, dmabuf, peermem, both; default off",
    )
    parser.add_argument(
        "--sizes",
        type=options.parse_sizes,
        default=options.parse_sizes("8,1K,32K,1M,16M,256M,1G"),
        metavar="A..B|A,B,C",
        help="bytes; default 8,1K,32K,1M,16M,256M,1G",
    )
    options.add_softrnic(parser)
    options.add_limit(parser, 2, 300, "one case")
    options.add_out(parser, "report-matrix")
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    return exit_codes.of_program(lambda: run(chosen))
