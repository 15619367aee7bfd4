"""All cases with all NCCLs, and the verdict."""

import argparse
import ctypes.util
import sys
from pathlib import Path

from abtest.compare import digest
from abtest.plan import Invalid

from . import counting, plan, report, runs, verdict


def run(options: argparse.Namespace) -> int:
    """0, 1 or 2 as scripts/matrix.py promises."""
    cases = plan.cases(options.parts, options.ranks, options.gdr, bool(options.softrnic))
    rows, wrong, nccls, gpus = [], [], [], []
    options.out.mkdir(parents=True, exist_ok=True)
    counter = counting.build(options.out.resolve()) if options.network == "Ferrite" else None
    for index, path in enumerate(options.libnccl or [found_nccl()]):
        folder = options.out.resolve() / f"nccl{index}"
        folder.mkdir(parents=True, exist_ok=True)
        setup = runs.Setup(str(path), options.libcuda, options.plugin, options.network, options.softrnic, options.sizes,
                           folder, options.limit, counter)
        runs.check_files(setup)
        version, outcomes = "?", {}
        for case in cases:
            row = one(setup, case, version, outcomes)
            rows.append(row)
            version = row["nccl"]
            if case in outcomes:
                gpus = [result["gpu"] for result in outcomes[case].results.values()]
            print(row["line"], flush=True)
        wrong += [f"NCCL {version}: {what}" for what in verdict.pairs(cases, outcomes)]
        nccls.append({"version": version, "sha256": sha256_of(Path(path))})
    about = {"command": " ".join(sys.argv), "network": options.network, "sizes": options.sizes, "gpus": gpus, "nccl": nccls,
             "plugin": sha256_of(options.plugin) if options.network == "Ferrite" else None, "softrnic": bool(options.softrnic)}
    report.write(options.out, about, rows, wrong)
    print(report.summary(rows, wrong))
    print(f"report: {options.out / 'report.md'}")
    return 1 if wrong or any(row["wrong"] for row in rows) else 0


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
