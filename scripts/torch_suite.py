#!/usr/bin/env python3
"""Runs PyTorch's own tests of torch.distributed over Ferrite and over sockets: does any fail over Ferrite alone?

    python scripts/torch_suite.py                          # all tests, with RDMA devices of this machine
    python scripts/torch_suite.py --softrnic --tests all_  # those whose names contain "all_", on the software device

They are in PyTorch's wheel (torch.testing), and need the package expecttest and as many GPUs as --world says. Each test runs in
processes of its own over Ferrite, and where it fails there, over sockets. Exit code 0: none fails over Ferrite that does not fail
over sockets. 1: some do; each is tried once more over both before that is said. 2: the tests cannot be run, none passes, or NCCL's
logs show another network or another GPUDirect than was asked for. 130: interrupted. report.md has each test.
"""

import argparse
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nccl_net_ferrite import evidence, exit_codes, files, launch, options, repository
from nccl_net_ferrite.exit_codes import Invalid
from nccl_net_ferrite.launch import last_line
from nccl_net_ferrite.networks import Side, Variables, ferrite, gpudirect, sockets

CASES = "nccl_net_ferrite.torch_suite_cases"
PASSED, SKIPPED, FAILED, NOT_RUN = "passed", "skipped", "failed", "-"


@dataclass(frozen=True)
class Outcome:
    """Of one test over both transports."""

    name: str
    ferrite: str
    sockets: str
    output: str  # over Ferrite
    went: str  # how data went between the processes over Ferrite, as NCCL's logs tell it

    def is_worse(self) -> bool:
        return self.ferrite == FAILED and self.sockets != FAILED


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", type=Path, default=repository.PLUGIN, help="Ferrite's library")
    parser.add_argument("--tests", default="", metavar="REGEX", help="only tests whose names contain this")
    parser.add_argument("--world", type=options.number(2, 8), default=2, help="processes, each with a GPU; default 2")
    parser.add_argument("--jobs", type=options.number(1, 64), default=4, help="tests at a time; default 4")
    options.add_gdr(parser, "GPUDirect over Ferrite")
    options.add_softrnic(parser)
    options.add_both(parser, "all tests")
    options.add_limit(parser, 10, 300, "one test over one transport")
    options.add_out(parser, "report-suite")
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    return exit_codes.of_program(lambda: compare(chosen))


def compare(chosen: argparse.Namespace) -> int:
    """Runs the tests and writes the report; returns an exit code."""
    sides = ferrite("Ferrite", chosen.plugin, gpudirect_on(chosen)), sockets("sockets")
    files.check_writable(chosen.out)
    names = [name for name in listed(chosen.world) if re.search(chosen.tests, name)]
    if not names:
        raise Invalid(f"--tests {chosen.tests}: no test has such a name")
    runner, pool = Runner(chosen, sides), ThreadPoolExecutor(chosen.jobs)
    try:
        outcomes = list(pool.map(runner.twice_if_worse, names))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        runner.end()
    worse = [outcome for outcome in outcomes if outcome.is_worse()]
    if not any(PASSED in (outcome.ferrite, outcome.sockets) for outcome in outcomes):
        raise Invalid(f"no test passes; the first one: {outcomes[0].output[-2000:]}")
    verdict = f"{len(worse)} of {len(outcomes)} tests fail over Ferrite and not over sockets"
    write(chosen.out, verdict, outcomes)
    check_network(outcomes, chosen.gdr)
    return exit_codes.WRONG if worse else exit_codes.GOOD


def gpudirect_on(chosen: argparse.Namespace) -> Variables:
    """Variables for --gdr; on the software device with its helper, which copies while PyTorch's processes wait inside of the driver."""
    helper = chosen.softrnic and chosen.gdr == "on"
    return (*gpudirect(chosen.gdr, bool(chosen.softrnic)), *((launch.gpu_helper(chosen.softrnic),) if helper else ()))


def check_network(outcomes: list[Outcome], gdr: str) -> None:
    """Tests that pass prove nothing about Ferrite if their data goes another way."""
    if not any(outcome.went for outcome in outcomes):
        raise Invalid("no test had a connection: NCCL's logs name none")
    asked = "" if gdr == "as-is" else f", GPUDirect {gdr}"
    for outcome in outcomes:
        networks = {way for way in outcome.went.split(", ") if way.startswith("NET/")}
        if outcome.went and not (networks == {"NET/Ferrite"} and outcome.went.endswith(asked)):
            raise Invalid(f"{outcome.name}: data went by {outcome.went}, not by NET/Ferrite{asked}")


def listed(world: int) -> list[str]:
    """Names of all tests."""
    done = subprocess.run(
        launch.python_command(CASES), env={**os.environ, "WORLD_SIZE": str(world)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Invalid(f"PyTorch's tests cannot be loaded: {last_line(done.stderr)}")
    return [line for line in done.stdout.splitlines() if line.startswith("test_")]


class Runner:
    """Runs tests, several at a time."""

    def __init__(self, chosen: argparse.Namespace, sides: tuple[Side, Side]):
        self.chosen, self.sides = chosen, sides
        self.living: set[subprocess.Popen[str]] = set()
        self.fabrics = itertools.count()

    def twice_if_worse(self, name: str) -> Outcome:
        """A test that fails over Ferrite alone is run again over both, and counts as it ends then: some fail by chance over either."""
        outcome = self.run(name)
        if outcome.is_worse():
            outcome = self.run(name)
        print(f"{outcome.name}: Ferrite {outcome.ferrite}, sockets {outcome.sockets}", flush=True)
        return outcome

    def run(self, name: str) -> Outcome:
        over_ferrite, output, went = self.run_side(self.sides[0], name)
        over_sockets = NOT_RUN if over_ferrite != FAILED else self.run_side(self.sides[1], name)[0]
        return Outcome(name, over_ferrite, over_sockets, output, went)

    def run_side(self, side: Side, name: str) -> tuple[str, str, str]:
        """How the test ends, what it says, and how its data went."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "barrier").touch()
            process = subprocess.Popen(
                launch.python_command(CASES, name),
                env=self.environment(side, folder),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self.living.add(process)
            try:
                output, _ = process.communicate(timeout=self.chosen.limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output = process.communicate()[0] + f"\nhas not ended within {self.chosen.limit} s"
            finally:
                self.living.discard(process)
            went = way_of(Path(folder))
        return outcome_of(process.returncode, output), output, went

    def environment(self, side: Side, folder: str) -> dict[str, str]:
        # The processes of one machine would not need a network.
        own = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
        if self.chosen.softrnic:
            own |= launch.softrnic_environment(self.chosen.softrnic, 0, f"{os.getpid()}-{next(self.fabrics)}")
            # PyTorch's processes have the same, so that NCCL takes them for one machine's.
            del own["NCCL_HOSTID"]
        own |= {"BACKEND": "nccl", "WORLD_SIZE": str(self.chosen.world), "TEMP_DIR": folder}
        own |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{folder}/nccl-%p"}
        return {**os.environ, **own, **dict(self.chosen.both), **dict(side.variables)}

    def end(self) -> None:
        """Ends what still runs, if this program was interrupted."""
        for process in list(self.living):
            os.killpg(process.pid, signal.SIGKILL)


def way_of(folder: Path) -> str:
    """How the data of the processes went whose logs lie there; "" if they had no connection."""
    found = evidence.read("".join(file.read_text(errors="replace") for file in sorted(folder.glob("nccl-*"))))
    return f"{', '.join(found.channels)}, GPUDirect {found.gdr}" if found.channels else ""


def outcome_of(code: int, output: str) -> str:
    if code:
        return FAILED
    return SKIPPED if re.search(r"^OK \(skipped=1\)$", output, re.MULTILINE) else PASSED


def write(folder: Path, verdict: str, outcomes: list[Outcome]) -> None:
    rows = [f"| {one.name} | {one.ferrite} | {one.sockets} | {one.went or 'no connection'} |" for one in outcomes]
    count = {what: sum(outcome.ferrite == what for outcome in outcomes) for what in (PASSED, SKIPPED, FAILED)}
    failed = [outcome for outcome in outcomes if outcome.ferrite == FAILED]
    counts = [f"{number} {what} over Ferrite" for what, number in count.items()]
    counts += [f"of these {sum(outcome.sockets == FAILED for outcome in failed)} failed over sockets as well"]
    head = ["| test | over Ferrite | over sockets | data over Ferrite went by |", "|---|---|---|---|"]
    parts = ["; ".join(counts) + ".", "    " + " ".join(sys.argv), "\n".join([*head, *rows])]
    for outcome in filter(Outcome.is_worse, outcomes):
        parts += [f"## {outcome.name}", "\n".join(f"    {line}" for line in outcome.output.splitlines()[-60:])]
    files.report(folder, "PyTorch's tests of torch.distributed", verdict, parts)


if __name__ == "__main__":
    sys.exit(main())
