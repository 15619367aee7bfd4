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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import exit_codes, files, options, repository
from ..errors import Invalid
from ..launch import gpus, placement
from ..launch.side_run import Setup, run_side
from ..networks import ferrite
from . import cases
from .judgement import Found, judge

# What each rank runs.
RANK = "nccl_net_ferrite.hang.rank"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", type=Path, default=repository.PLUGIN, help="Ferrite's library")
    parser.add_argument("--ranks", type=options.number(2, 64), help="default: the GPUs of this machine, at least 2")
    parser.add_argument("--cases", default=",".join(case.name for case in cases.CASES), metavar="NAME,NAME")
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
        wanted = cases.named(chosen.cases)
    except ValueError as why:
        raise Invalid(f"--cases: {why}") from why
    files.check_writable(chosen.out)
    placements = placement.on_this_machine(chosen.ranks, gpus.seen_by_torch())
    culprit = len(placements) - 1 if chosen.culprit is None else chosen.culprit
    if culprit >= len(placements):
        raise Invalid(f"--culprit {culprit}: there are ranks 0 to {len(placements) - 1}")
    found: list[Found] = []
    versions: dict[str, str] = {}
    for case, port in zip(wanted, placement.free_ports(len(wanted))):
        one, versions = run_case(chosen, case, culprit, [place.at_port(port) for place in placements])
        found.append(one)
        print(f"{one.case}: {'right' if one.is_good() else '; '.join(one.wrong)}", flush=True)
    bad = [one.case for one in found if not one.is_good()]
    summary = f"the reports are wrong in {', '.join(bad)}" if bad else f"the reports are right in all of {len(found)} cases"
    exit_codes.write_and_print(lambda: write(chosen.out, files.library(chosen.plugin), summary, versions, found), summary, chosen.out)
    return exit_codes.WRONG if bad else exit_codes.GOOD


def run_case(
    chosen: argparse.Namespace, case: cases.Case, culprit: int, placements: list[placement.Placement]
) -> tuple[Found, dict[str, str]]:
    folder = chosen.out.resolve() / f"reports-{case.name}"
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.json"):
        stale.unlink()
    setup = Setup(
        module=RANK,
        task={"how": case.name, "hold_s": case.hold_s, "culprit": culprit},
        both=(("FERRITE_HANG_SECONDS", str(cases.THRESHOLD_S)), ("FERRITE_REPORT_DIR", str(folder)), *chosen.both),
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
    files.write_json(folder / "raw.json", {"versions": versions, "plugin": asdict(plugin), "cases": [asdict(one) for one in found]})
    parts = ["# Hangs of a PyTorch job, and what Ferrite reported", summary[:1].upper() + summary[1:] + "."]
    for one in found:
        verdict = "right" if one.is_good() else "**wrong**: " + "; ".join(one.wrong)
        texts = [f"- rank {rank}: {text}" for rank, text in sorted(one.texts.items())] or ["- no report"]
        parts += [f"## {one.case}: {one.claim}", f"Held up: rank {one.culprit}. {verdict}.", "\n".join(texts)]
    facts = [
        f"- command: `{' '.join(sys.argv)}`",
        f"- versions: {', '.join(f'{name} {version}' for name, version in versions.items())}",
        f"- plugin: {plugin.text()}",
        f"- a wait is reported after {cases.THRESHOLD_S} s; the rank was held up for {cases.HOLD_S} s",
    ]
    (folder / "report.md").write_text("\n\n".join([*parts, "\n".join(facts)]) + "\n")
