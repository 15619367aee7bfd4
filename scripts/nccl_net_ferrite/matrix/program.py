"""All cases with all NCCLs, and the report of them."""

import argparse
import ctypes.util
import sys
from dataclasses import dataclass, field
from pathlib import Path

from .. import files
from ..errors import Invalid
from ..exit_codes import GOOD, WRONG, write_and_print
from ..launch import gpus, softrnic
from ..networks import check_plugin
from . import case_run, cases, checks, counting, report
from .case_run import Outcome, Setup
from .cases import Case
from .results import About, CaseResult, Findings, Nccl, Report


@dataclass
class Progress:
    """What there is to report so far."""

    rows: list[CaseResult] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    nccls: list[Nccl] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)


def run(options: argparse.Namespace) -> int:
    """Returns an exit code."""
    chosen = cases.of_parts(options.parts, options.ranks, options.gdr, bool(options.softrnic))
    libraries = [str(path) for path in options.libnccl or [system_nccl()]]
    check(options, libraries)
    is_counting = options.network == "Ferrite" and any(case.is_counted() for case in chosen)
    counter = counting.build(options.out.resolve()) if is_counting else None
    progress = Progress()
    try:
        for index, path in enumerate(libraries):
            run_all(setup_of(options, path, index, counter), chosen, progress)
    except KeyboardInterrupt as interrupt:
        if not progress.rows:
            raise
        progress.wrong.append(f"interrupted after {len(progress.rows)} of {len(chosen) * len(libraries)} cases")
        write_report(options, progress)
        raise KeyboardInterrupt(f"{progress.wrong[-1]}, which {options.out / 'report.md'} has") from interrupt
    return GOOD if write_report(options, progress).is_good() else WRONG


def check(options: argparse.Namespace, libraries: list[str]) -> None:
    """All that can be known to be wrong before the first case."""
    if options.network == "Ferrite":
        check_plugin(options.plugin)
    softrnic.check(options.softrnic)
    files.check_writable(options.out)
    for path in libraries:
        gpus.seen_by_driver(options.libcuda, path)


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
    progress.wrong += [f"NCCL {version}: {what}" for what in checks.compare_flush_cases(chosen, outcomes)]
    progress.nccls.append(Nccl(version, sha256_of(Path(setup.libnccl))))


def run_and_check(setup: Setup, case: Case) -> tuple[Outcome | None, Findings]:
    """A case that cannot be run is wrong, and has no outcome; the others go on."""
    try:
        outcome = case_run.run_case(setup, case)
    except Invalid as why:
        return None, Findings(wrong=[" ".join(str(why).split())])
    return outcome, checks.check_case(outcome, setup.network)


def write_report(options: argparse.Namespace, progress: Progress) -> Report:
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
    write_and_print(lambda: report.write(options.out, found), report.summary(found), options.out)
    return found


def sha256_of(path: Path) -> str:
    """Of a file; a bare name was found by the loader."""
    return files.sha256(path) if path.is_file() else "unknown"


def system_nccl() -> str:
    found = ctypes.util.find_library("nccl")
    if not found:
        raise Invalid("no libnccl.so.2 in the system's path: name one with --libnccl")
    return found
