"""All cases with all NCCLs, and the verdict."""

import argparse
import ctypes.util
import sys
from dataclasses import dataclass
from pathlib import Path

from abtest import probe
from abtest.compare import digest
from abtest.ending import GOOD, WRONG, telling
from abtest.plan import Invalid

from . import counting, plan, report, runs, verdict


def run(options: argparse.Namespace) -> int:
    """Returns a code of abtest/ending.py."""
    cases = plan.cases(options.parts, options.ranks, options.gdr, bool(options.softrnic))
    libraries = [str(path) for path in options.libnccl or [found_nccl()]]
    check(options, libraries)
    is_counting = options.network == "Ferrite" and any(case.is_counted() for case in cases)
    counter = counting.build(options.out.resolve()) if is_counting else None
    found = Found([], [], [], [])
    try:
        for index, path in enumerate(libraries):
            folder = options.out.resolve() / f"nccl{index}"
            folder.mkdir(parents=True, exist_ok=True)
            all_cases(runs.Setup(path, options.libcuda, options.plugin, options.network, options.softrnic, options.sizes, folder,
                                 options.limit, counter), cases, found)
    except KeyboardInterrupt as interrupt:
        if not found.rows:
            raise
        found.wrong.append(f"interrupted after {len(found.rows)} of {len(cases) * len(libraries)} cases")
        tell(options, found)
        raise KeyboardInterrupt(f"{found.wrong[-1]}, which {options.out / 'report.md'} has") from interrupt
    tell(options, found)
    return WRONG if found.wrong or any(row["wrong"] for row in found.rows) else GOOD


@dataclass
class Found:
    """What there is to report so far."""

    rows: list[dict]
    wrong: list[str]
    nccls: list[dict]
    gpus: list[str]


def check(options: argparse.Namespace, libraries: list[str]) -> None:
    """All that can be known to be wrong before the first case."""
    if options.network == "Ferrite" and not options.plugin.is_file():
        raise Invalid(f"--plugin {options.plugin}: no such file; scripts/build.sh makes it")
    probe.softrnic(options.softrnic)
    probe.writable(options.out)
    for path in libraries:
        probe.gpus_of_driver(options.libcuda, path)


def all_cases(setup: runs.Setup, cases: list[plan.Case], found: Found) -> None:
    """With one NCCL."""
    version, outcomes = "?", {}
    for case in cases:
        row = one(setup, case, version, outcomes)
        found.rows.append(row)
        version = row["nccl"]
        if case in outcomes:
            found.gpus = [result["gpu"] for result in outcomes[case].results.values()]
        print(row["line"], flush=True)
    found.wrong += [f"NCCL {version}: {what}" for what in verdict.pairs(cases, outcomes)]
    found.nccls.append({"version": version, "sha256": sha256_of(Path(setup.libnccl))})


def tell(options: argparse.Namespace, found: Found) -> None:
    about = {"command": " ".join(sys.argv), "network": options.network, "sizes": options.sizes, "gpus": found.gpus, "nccl": found.nccls,
             "plugin": sha256_of(options.plugin) if options.network == "Ferrite" else None, "softrnic": bool(options.softrnic)}
    with telling(report.summary(found.rows, found.wrong), options.out):
        report.write(options.out, about, found.rows, found.wrong)


def one(setup: runs.Setup, case: plan.Case, version: str, outcomes: dict) -> dict:
    """A case that cannot be run is a case that is wrong; the others go on."""
    try:
        outcome = runs.go(setup, case)
    except Invalid as why:
        return report.row_of(version, case, None, [" ".join(str(why).split())], [])
    outcomes[case] = outcome
    version = next(iter(outcome.results.values()))["version"]
    return report.row_of(version, case, outcome, *verdict.of(outcome, setup.network, version))


def sha256_of(path: Path) -> str:
    """Of a file; a bare name was found by the loader."""
    return digest(path)["sha256"] if path.is_file() else "unknown"


def found_nccl() -> str:
    found = ctypes.util.find_library("nccl")
    if not found:
        raise Invalid("no libnccl.so.2 in the system's path: name one with --libnccl")
    return found
