"""Trains the same small model over NCCL's built-in IB transport, over Ferrite and over sockets: the same to the last bit?

    python scripts/ddp.py                          # all GPUs of this machine, RDMA devices of this machine
    python scripts/ddp.py --softrnic --ranks 2     # on the software device, on a machine without RDMA

PyTorch's DistributedDataParallel, or with --sharded its FSDP, fresh processes for each run; the built-in runs twice, to show that
the training repeats itself at all. Each run makes and destroys its process group several times: file descriptors, threads and queue pairs
are counted after each. Exit code 0: every loss and every parameter is the same, and nothing leaks. 1: something differs, or
leaks. 2: the check is not valid, or could not be made. 130: interrupted. report.md and raw.json have the details.
"""

import argparse
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import exit_codes, files, launch, options, repository
from .evidence import Evidence, check
from .exit_codes import Invalid
from .files import Library
from .launch import Setup, run_side
from .networks import Side, Variables, built_in, ferrite, gpudirect, sockets

# -- what the runs of a training left, with the form that it has as JSON --

# What a process holds, by its name in raw.json. Queue pairs are counted on the software device only.
KINDS = {"fds": "file descriptors", "threads": "threads", "qps": "queue pairs"}


@dataclass(frozen=True)
class Run:
    """One training over one network."""

    name: str
    network: str
    losses: list[list[str]]  # of each rank at each step, as hexadecimal floating point numbers
    digests: list[str]  # SHA-256 of each rank's parameters at the end
    evidence: list[Evidence]  # of each rank
    gpus: list[str]
    held: list[list[dict[str, int]]]  # of each rank after each process group: how many of each of KINDS
    versions: dict[str, str]
    seconds: float
    gdr: str

    @classmethod
    def from_json(cls, raw: dict[str, Any], side: Side) -> "Run":
        """Of what rank 0 wrote. Raises Invalid unless the logs prove that it ran on `side`."""
        evidence = [Evidence.from_json(one) for one in raw["evidence"]]
        gdr = check(evidence, side.network, f"run {side.name}")
        return cls(
            side.name,
            side.network,
            raw["losses"],
            raw["digests"],
            evidence,
            raw["gpus"],
            raw["held"],
            raw["versions"],
            raw["seconds"],
            gdr,
        )

    def first_loss(self) -> float:
        """Of rank 0."""
        return float.fromhex(self.losses[0][0])

    def last_loss(self) -> float:
        """Of rank 0."""
        return float.fromhex(self.losses[0][-1])

    def counts(self, kind: str) -> list[int]:
        """What rank 0 held after each process group; empty if it was not counted."""
        return [held[kind] for held in self.held[0] if kind in held]

    def growth(self, kind: str) -> int:
        """How much more of it the worst rank holds after its last process group than after its first; of queue pairs, which all have to
        be destroyed, how many it holds after its last."""
        if kind == "qps":
            return max(held[-1][kind] for held in self.held)
        return max(held[-1][kind] - held[0][kind] for held in self.held)


@dataclass(frozen=True)
class About:
    """How the trainings were made: raw.json has these names, in this order."""

    command: str
    plugin: Library
    versions: dict[str, str]
    gpus: list[str]
    variables: dict[str, str]
    cycles: int  # process groups, one after the other
    softrnic: bool
    sharded: bool = False  # parameters shared out among the ranks


@dataclass(frozen=True)
class Verdict:
    is_good: bool
    text: str


@dataclass(frozen=True)
class Report:
    about: About
    verdict: Verdict
    runs: list[Run]


# -- whether several trainings are the same to the last bit, where they differ first, and what they leave behind --


def judge(runs: list[Run]) -> Verdict:
    """The first run and the last are of the same network, the second is Ferrite's."""
    first, ferrite, last = runs[0], runs[1], runs[-1]
    wrong = [what for run in runs for what in errors_within(run)]
    control = difference(first, last)
    if control:
        wrong.append(f"the training does not repeat itself over the same network: {first.name} and {last.name}: {control}")
    else:
        for run in runs[1:-1]:
            found = difference(first, run)
            if found:
                wrong.append(f"{run.name} differs from {first.name}: {found}")
    wrong += leaks(ferrite, first)
    if wrong:
        return Verdict(False, "; ".join(wrong))
    names = ", ".join(dict.fromkeys(run.name for run in runs[:-1]))
    return Verdict(
        True,
        f"the same to the last bit over {names}: {len(first.losses[0])} losses of each rank, and all parameters; "
        f"{ferrite.name} leaks nothing",
    )


def errors_within(run: Run) -> list[str]:
    """What has to hold within a run: it learns, and all ranks have the same parameters."""
    wrong = []
    # Written so that it also holds where the last loss is NaN.
    if not run.last_loss() < run.first_loss():
        wrong.append(f"{run.name} learns nothing: its loss goes from {run.first_loss():.4f} to {run.last_loss():.4f}")
    if len(set(run.digests)) != 1:
        wrong.append(f"{run.name}: the parameters of its ranks differ")
    return wrong


def difference(one: Run, other: Run) -> str:
    """The first place where two runs differ, or ""."""
    for rank, (left, right) in enumerate(zip(one.losses, other.losses)):
        for step, (a, b) in enumerate(zip(left, right)):
            if a != b:
                return f"the loss of rank {rank} at step {step}, {float.fromhex(a):.9g} and {float.fromhex(b):.9g}"
    if one.digests != other.digests:
        return "the parameters at the end"
    return ""


def leaks(run: Run, built_in: Run) -> list[str]:
    """What `run` leaves behind, as far as `built_in` leaves less of it."""
    found = []
    for kind, words in KINDS.items():
        if not run.counts(kind):
            continue
        mine, theirs = run.growth(kind), built_in.growth(kind)
        if mine > max(0, theirs):
            found.append(f"{run.name} leaks {mine} {words} over {len(run.held[0])} process groups, the built-in {theirs}")
    return found


# -- the report of the trainings: a table, and all numbers --

HOW = (
    "A transformer of 3 million parameters learns the source text of Python's standard library, byte by byte, with "
    "{parallel}, AdamW and deterministic algorithms. Losses are compared as the 32-bit numbers that they are, of "
    "every rank at every step. The last columns are what rank 0 held after each of its process groups was destroyed."
)


def write_report(folder: Path, report: Report) -> None:
    how = HOW.format(parallel="FSDP (fully_shard)" if report.about.sharded else "DistributedDataParallel")
    parts = [table(report.runs), how, facts(report.about, report.runs[1])]
    files.report(folder, "The same training over three networks", report.verdict.text, parts, asdict(report))


def table(runs: list[Run]) -> str:
    lines = [
        "| run | network | GPUDirect | first loss | last loss | parameters (sha256) | " + " | ".join(KINDS.values()) + " |",
        "|---|---|---|---:|---:|---|" + "---|" * len(KINDS),
    ]
    for run in runs:
        held = [", ".join(map(str, run.counts(kind))) or "not counted" for kind in KINDS]
        lines.append(
            f"| {run.name} | {run.network} | {run.gdr} | {run.first_loss():.9g} | {run.last_loss():.9g} "
            f"| `{run.digests[0][:16]}` | {' | '.join(held)} |"
        )
    return "\n".join(lines)


def facts(about: About, ferrite: Run) -> str:
    # Paths of the machine are left out.
    variables = " ".join(f"`{name}={value}`" for name, value in sorted(about.variables.items()) if not value.startswith("/"))
    grown = "; ".join(f"{words} {ferrite.growth(kind):+d}" for kind, words in KINDS.items() if ferrite.counts(kind))
    lines = [
        f"- command: `{about.command}`",
        f"- versions: {', '.join(f'{name} {version}' for name, version in about.versions.items())}",
        f"- ranks: {'; '.join(about.gpus)}",
        f"- plugin: {about.plugin.text()}",
        f"- variables: {variables}",
        f"- Ferrite, worst rank, from the first to the last of {about.cycles} process groups: {grown}",
    ]
    if about.softrnic:
        lines.append("- on the software device, both ends on one machine")
    return "\n".join(lines)


# -- the trainings, one after the other, and the report of them --

# What each rank runs.
RANK = "nccl_net_ferrite.ddp_rank"


def compare(options: argparse.Namespace) -> int:
    """Trains over each network and compares; returns an exit code."""
    # The built-in comes twice: a difference between its two runs is not the network's.
    sides = [built_in("built-in"), ferrite("Ferrite", options.plugin, []), sockets("sockets"), built_in("built-in-again")]
    if options.faults:
        # Before the last, which shows that the training repeats itself.
        sides.insert(3, ferrite("Ferrite-under-faults", options.plugin, [("SOFTRNIC_FAULTS", options.faults)]))
    files.check_writable(options.out)
    setup = setup_of(options)
    placements = launch.placements_here(options.ranks, launch.gpus_seen_by_torch())
    runs = [run_one(setup, side, placements) for side in sides]
    about = About(
        command=" ".join(sys.argv),
        plugin=files.library(options.plugin),
        versions=runs[0].versions,
        gpus=runs[0].gpus,
        variables=dict(setup.both),
        cycles=options.cycles,
        softrnic=bool(options.softrnic),
        sharded=options.sharded,
    )
    verdict = judge(runs)
    found = Report(about, verdict, runs)
    write_report(options.out, found)
    return exit_codes.GOOD if verdict.is_good else exit_codes.WRONG


def run_one(setup: Setup, side: Side, placements: list[launch.Placement]) -> Run:
    with launch.own_ports(1) as port:
        raw = run_side(setup, side, [one.at_port(port) for one in placements], side.name)
    if raw is None:
        raise Invalid("rank 0 is on another machine")
    run = Run.from_json(raw, side)
    print(
        f"{run.name}: {run.network}, GPUDirect {run.gdr}, {setup.task['steps']} steps, last loss {run.last_loss():.6f}, "
        f"{run.seconds:.0f} s",
        flush=True,
    )
    return run


def setup_of(options: argparse.Namespace) -> Setup:
    # A sum of more than two ranks depends on the order of addition: on algorithm, protocol and channels.
    fixed: Variables = (
        *gpudirect(options.gdr, bool(options.softrnic)),
        ("NCCL_ALGO", options.algo),
        ("NCCL_PROTO", options.proto),
        ("NCCL_MIN_NCHANNELS", "2"),
        ("NCCL_MAX_NCHANNELS", "2"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    )
    if options.softrnic:
        fixed += (("DDP_SOFTRNIC_TOOL", str(launch.softrnic_tool(options.softrnic))),)
        if options.gdr == "on":
            fixed += (launch.gpu_helper(options.softrnic),)
    elif not any(name in os.environ for name in ("NCCL_HOSTID", "NCCL_P2P_DISABLE")):
        # Ranks of one machine would not need a network.
        fixed += (("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1"))
    return Setup(
        module=RANK,
        task={"steps": options.steps, "cycles": options.cycles, "sharded": options.sharded},
        both=(*fixed, *options.both),
        softrnic=options.softrnic,
        folder=options.out.resolve(),
        limit=options.limit,
        fabric=str(os.getpid()),
    )


def arguments() -> argparse.Namespace:
    parser = options.parser(__doc__)
    parser.add_argument("--plugin", type=Path, default=repository.PLUGIN, help="Ferrite's library")
    parser.add_argument("--steps", type=options.number(3, 100_000), default=300, help="of training; default 300")
    parser.add_argument(
        "--cycles",
        type=options.number(1, 100),
        metavar="N",
        help="process groups, one after the other, that share the steps; default 3, with --sharded 1",
    )
    parser.add_argument(
        "--sharded", action="store_true", help="share out parameters, gradients and optimiser among the ranks (FSDP: fully_shard)"
    )
    parser.add_argument("--ranks", type=options.number(2, 64), help="default: the GPUs of this machine, at least 2")
    parser.add_argument("--algo", default="Ring", help="NCCL_ALGO; default Ring")
    parser.add_argument("--proto", default="Simple", help="NCCL_PROTO; default Simple")
    options.add_gdr(parser, "GPUDirect")
    options.add_both(parser, "all runs")
    options.add_softrnic(parser)
    parser.add_argument("--faults", metavar="RULES", help="with --softrnic: train once more over Ferrite under these fault rules")
    options.add_limit(parser, 10, 900, "one run")
    options.add_out(parser, "report-ddp")
    chosen = parser.parse_args()
    chosen.cycles = chosen.cycles or (1 if chosen.sharded else 3)
    if chosen.sharded and chosen.cycles > 1:
        parser.error(f"--cycles {chosen.cycles}: with --sharded there is one, since the parameters are bound to the process group")
    if chosen.faults and not chosen.softrnic:
        parser.error("--faults is of the software device: --softrnic is missing")
    if chosen.cycles > chosen.steps:
        parser.error(f"--cycles {chosen.cycles} is more than --steps {chosen.steps}")
    return chosen


def main() -> int:
    chosen = arguments()
    return exit_codes.of_program(lambda: compare(chosen))
