"""Holds up one rank of a PyTorch job over Ferrite, in several ways, and checks that the reports name it.

    python scripts/hang.py                          # all GPUs of this machine, RDMA devices of this machine
    python scripts/hang.py --softrnic --ranks 4     # on the software device, on a machine without RDMA

Fresh processes for each case. Exit code 0: in each case the reports of the waiting ranks name the right one, with the right
verdict and, from NCCL 2.28.3 on, the operation; and where no report is due there is none. 1: a report is wrong or missing, or
a sum is. 2: the check is not valid, or could not be made. 130: interrupted. report.md has the text of each report; raw.json says more.
"""

import argparse
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import exit_codes, files, launch, options, repository
from .exit_codes import Invalid
from .launch import Setup, run_side
from .networks import ferrite

# -- what is done to which rank, and what the reports have to say --

# When a wait is reported: FERRITE_HANG_SECONDS of all runs.
THRESHOLD_S = 3
# How long the rank holds up the others, where a report is due.
HOLD_S = 10
# all_reduce operations before the one that is held up: its number, as NCCL counts them, and after it.
BEFORE, AFTER = 5, 5
# The first NCCL that tells a profiler in Ferrite's library of its operations.
NAMES_FROM = (2, 28, 3)


@dataclass(frozen=True)
class Case:
    name: str
    claim: str
    hold_s: float  # how long the culprit holds up the others
    is_reported: bool
    # Verdicts of the cause, of which a report has to have one; none: a report may also name the culprit as the most likely one.
    verdicts: tuple[str, ...] = ()
    # Where operations have names: whether the culprit has begun the operation; None: nobody can know.
    has_begun: bool | None = None


CASES = [
    Case("absent", "one rank has not begun the all_reduce", HOLD_S, True, ("PeerHasNotSent", "PeerHasNotAsked"), False),
    Case("gpu", "one rank has begun the all_reduce behind a kernel that runs for long", HOLD_S, True, has_begun=True),
    Case("stopped", "one rank's process is stopped by SIGSTOP", HOLD_S, True, ("PeerSilent",)),
    Case("late", "one rank begins the all_reduce late, before the threshold", THRESHOLD_S / 3, False),
]


def cases_of(names: str) -> list[Case]:
    """Of a list with commas. Raises ValueError with what is allowed."""
    known = {case.name: case for case in CASES}
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise ValueError(f"{unknown[0]!r} must be one of {', '.join(known)}")
    return [known[name] for name in names.split(",")]


# -- whether the reports of a run name the rank that was held up --


@dataclass(frozen=True)
class Found:
    """Of one case."""

    case: str
    claim: str
    culprit: int
    texts: dict[int, str]  # of each rank that wrote a report: the text of its first one
    named: dict[int, int | None]  # the rank that it names as the cause, or as the most likely one
    wrong: list[str]  # what is not as it has to be

    def is_good(self) -> bool:
        return not self.wrong


def judge(case: Case, culprit: int, ranks: list[dict[str, Any]], reports: list[dict[str, Any]], nccl: str) -> Found:
    """`ranks`: what each rank left, in order, with its "pid" and whether its sums were "right". `reports`: the JSON files of all.
    `nccl`: the version of NCCL."""
    by_pid = {one["pid"]: rank for rank, one in enumerate(ranks)}
    firsts: dict[int, dict[str, Any]] = {}
    for report in sorted(reports, key=lambda report: int(report["number"])):
        if report["pid"] in by_pid:
            firsts.setdefault(by_pid[report["pid"]], report)
    wrong = [f"rank {rank} has wrong sums" for rank, one in enumerate(ranks) if not one["right"]]
    named = {}
    for rank, report in sorted(firsts.items()):
        verdict, named[rank] = cause_of(report)
        if rank == culprit:
            wrong.append(f"rank {rank} was held up and has reported a wait")
        elif named[rank] != culprit:
            wrong.append(f"rank {rank} names rank {named[rank]}, and rank {culprit} was held up")
        elif case.verdicts and verdict not in case.verdicts:
            wrong.append(f"rank {rank} has the verdict {verdict}, and not {' or '.join(case.verdicts)}")
        if rank != culprit and names_operations(nccl):
            wrong += [f"rank {rank} {what}" for what in wrong_operation(case, report)]
    if case.is_reported and not firsts:
        wrong.append("nobody has reported a wait")
    if not case.is_reported:
        wrong += [f"rank {rank} has reported a wait that was below the threshold" for rank in firsts]
    return Found(case.name, case.claim, culprit, {rank: report["text"] for rank, report in firsts.items()}, named, wrong)


def cause_of(report: dict[str, Any]) -> tuple[str | None, int | None]:
    """The verdict and the rank that a report names: the nearest cause's, or that of the process that is most likely the cause."""
    waits = report["waits"]
    if waits and waits[0]["cause"]:
        return waits[0]["cause"]["verdict"], rank_of(waits[0]["cause"]["far"])
    likely = report["least_lead"]
    return None, rank_of(likely["who"]) if likely else None


def names_operations(nccl: str) -> bool:
    return tuple(int(number) for number in nccl.split(".")[:3]) >= NAMES_FROM


def wrong_operation(case: Case, report: dict[str, Any]) -> list[str]:
    """What a report says wrongly, or does not say, of the operation that was held up."""
    wait = report["waits"][0] if report["waits"] else {}
    operation = wait.get("operation") or {}
    named = (operation.get("function"), operation.get("number"))
    wrong = [] if named == ("AllReduce", BEFORE) else [f"waits in {named[0]} number {named[1]}, and it was AllReduce number {BEFORE}"]
    has_begun = (wait.get("cause") or {}).get("far_has_begun")
    if None not in (case.has_begun, has_begun) and has_begun != case.has_begun:
        wrong.append(f"says that NCCL there has {'' if has_begun else 'not '}launched the operation")
    if case.has_begun is False and has_begun is None:
        wrong.append("does not say whether NCCL there has launched the operation")
    return wrong


def rank_of(process: dict[str, Any]) -> int | None:
    """As NCCL's tags tell it, or else the launcher."""
    found: int | None = process["rank"] if process["rank"] is not None else process["rank_in_job"]
    return found


# What each rank runs.
RANK = "nccl_net_ferrite.hang_rank"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", type=Path, default=repository.PLUGIN, help="Ferrite's library")
    parser.add_argument("--ranks", type=options.number(2, 64), help="default: the GPUs of this machine, at least 2")
    parser.add_argument("--cases", default=",".join(case.name for case in CASES), metavar="NAME,NAME")
    parser.add_argument("--culprit", type=options.number(0, 63), help="the rank that is held up; default the last one")
    options.add_both(parser, "all runs")
    options.add_softrnic(parser)
    options.add_limit(parser, 30, 180, "one case")
    options.add_out(parser, "report-hang")
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    return exit_codes.of_program(lambda: check(chosen))


def check(chosen: argparse.Namespace) -> int:
    try:
        wanted = cases_of(chosen.cases)
    except ValueError as why:
        raise Invalid(f"--cases: {why}") from why
    files.check_writable(chosen.out)
    placements = launch.placements_here(chosen.ranks, launch.gpus_seen_by_torch())
    culprit = len(placements) - 1 if chosen.culprit is None else chosen.culprit
    if culprit >= len(placements):
        raise Invalid(f"--culprit {culprit}: there are ranks 0 to {len(placements) - 1}")
    found: list[Found] = []
    versions: dict[str, str] = {}
    for case in wanted:
        with launch.own_ports(1) as port:
            one, versions = run_case(chosen, case, culprit, [place.at_port(port) for place in placements])
        found.append(one)
        print(f"{one.case}: {'right' if one.is_good() else '; '.join(one.wrong)}", flush=True)
    bad = [one.case for one in found if not one.is_good()]
    summary = f"the reports are wrong in {', '.join(bad)}" if bad else f"the reports are right in all of {len(found)} cases"
    write(chosen.out, files.library(chosen.plugin), summary, versions, found)
    return exit_codes.WRONG if bad else exit_codes.GOOD


def run_case(chosen: argparse.Namespace, case: Case, culprit: int, placements: list[launch.Placement]) -> tuple[Found, dict[str, str]]:
    folder = chosen.out.resolve() / f"reports-{case.name}"
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.json"):
        stale.unlink()
    setup = Setup(
        module=RANK,
        task={"how": case.name, "hold_s": case.hold_s, "culprit": culprit},
        both=(("FERRITE_HANG_SECONDS", str(THRESHOLD_S)), ("FERRITE_REPORT_DIR", str(folder)), *chosen.both),
        softrnic=chosen.softrnic,
        folder=chosen.out.resolve(),
        limit=chosen.limit,
        fabric=str(os.getpid()),
    )
    raw: dict[str, Any] | None = run_side(setup, ferrite("Ferrite", chosen.plugin, []), placements, case.name)
    if raw is None:
        raise Invalid("rank 0 is on another machine")
    reports = [files.read_json(path) for path in sorted(folder.glob("*.json"))]
    return judge(case, culprit, raw["ranks"], reports, raw["versions"]["nccl"]), raw["versions"]


def write(folder: Path, plugin: files.Library, summary: str, versions: dict[str, str], found: list[Found]) -> None:
    parts = []
    for one in found:
        verdict = "right" if one.is_good() else "**wrong**: " + "; ".join(one.wrong)
        texts = [f"- rank {rank}: {text}" for rank, text in sorted(one.texts.items())] or ["- no report"]
        parts += [f"## {one.case}: {one.claim}", f"Held up: rank {one.culprit}. {verdict}.", "\n".join(texts)]
    facts = [
        f"- command: `{' '.join(sys.argv)}`",
        f"- versions: {', '.join(f'{name} {version}' for name, version in versions.items())}",
        f"- plugin: {plugin.text()}",
        f"- a wait is reported after {THRESHOLD_S} s; the rank was held up for {HOLD_S} s",
    ]
    raw = {"versions": versions, "plugin": asdict(plugin), "cases": [asdict(one) for one in found]}
    files.report(folder, "Hangs of a PyTorch job, and what Ferrite reported", summary, [*parts, "\n".join(facts)], raw)
