"""Compares Ferrite with NCCL's built-in IB transport, or with another Ferrite: per collective and size, with proof of which network ran.

On one machine it starts the ranks itself; under a launcher each of its processes is one rank, and rank 0 has the verdict:

    python scripts/ab.py --check                # in seconds: plugin, GPUs, NCCL, RDMA and TCP ports, and a short trial
    python scripts/ab.py                        # all GPUs and RDMA devices of this machine, with PyTorch's NCCL
    python scripts/ab.py --softrnic --ranks 2   # on the software device, on a machine without RDMA
    python scripts/ab.py --libnccl FILE         # with this libnccl.so.2
    python scripts/ab.py --baseline OLD         # A is Ferrite too, in the file OLD, or with other variables (--only-a)

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST0:29500 scripts/ab.py     # on each node
    srun --nodes 2 --ntasks-per-node 8 python scripts/ab.py
    mpirun -np 16 -H HOST0:8,HOST1:8 -x MASTER_ADDR=HOST0 python scripts/ab.py

    torchrun --nproc-per-node 2 scripts/ab.py --softrnic    # tries the launcher, on one machine without RDMA

    python scripts/ab.py --again raw.json       # judges an earlier run once more, with another --effect

Four communicators live at once in fresh processes, two over each network, and take turns of some milliseconds. This is repeated with
new processes until the verdict is clear, or --seconds are over. With another library as --baseline, with --only-a, --only-b or --fresh,
each side has processes of its own, in the order A B B A, B A A B. That takes longer. Under a launcher, the TCP ports MASTER_PORT + 1
and + 2 of rank 0's host have to be open (MASTER_PORT is 29500 by default).

Exit code 0: Ferrite is as good or better. 1: it is worse somewhere, by 3 % or more. 2: the comparison is not valid, or could not be made.
3: undecided, too few or too noisy runs. 130: interrupted; the whole blocks that were done are in the report. The program ferrite, which
comes with this one, judges the times as it judges those of `ferrite compare`. report.md, report.svg and raw.json have the details;
nccl-tests.txt has the bandwidths in the layout of nccl-tests.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from . import elf, exit_codes, files, launch, options, repository
from .evidence import Evidence, check
from .exit_codes import TOO_FEW_RUNS, Invalid
from .launch import OVERRIDDEN, Placement, Setup, run_side
from .nccl import ELEMENT
from .networks import Side, built_in, check_plugin, ferrite, gpudirect
from .options import size_text
from .rendezvous import Rendezvous

# -- what is run: collectives, sides, and the order of runs --

# Bus bandwidth over algorithm bandwidth, for n ranks, as nccl-tests defines it: the part of the bytes that a link really carries.
COLLECTIVES: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "send_recv": lambda _: 1.0,
}

# Runs of a block: communicators that live at once, or jobs of fresh processes.
BLOCK = 4
# Blocks that should fit into --seconds; those after which `ferrite judge` is asked first.
BLOCKS, LEAST_BLOCKS = 16, 6
# What a run is, for the report.
PAIRED = "a communicator of its own; the four of a block live at once in fresh processes and take turns"
FRESH = "a job of fresh processes"


def looks(blocks: int) -> tuple[int, bool]:
    """Which look at the times one after so many blocks is, and whether it is due: each look takes a part of the chance of a false claim."""
    number, at = 1, LEAST_BLOCKS
    while at < blocks:
        number, at = number + 1, at + at // 2
    return number, at == blocks


def sides_of(options: argparse.Namespace) -> tuple[Side, Side]:
    """A: NCCL's built-in IB transport, or the plugin of --baseline; B: the plugin. Each with the variables that it alone has."""
    b = ferrite("B", options.plugin, options.only_b)
    if not options.baseline:
        return built_in("A", options.only_a), b
    check_plugin(options.baseline, "--baseline")
    return ferrite("A", options.baseline, options.only_a), b


def why_apart(options: argparse.Namespace) -> str:
    """Why the two sides cannot live in one process; empty if they can."""
    if options.fresh:
        return "--fresh"
    if options.only_a or options.only_b:
        return "variables are those of a whole process"
    if options.baseline and files.sha256(options.baseline) != files.sha256(options.plugin):
        return "NCCL loads one plugin of a name"
    if options.softrnic and not launch.is_one_file(options.softrnic):
        return f"libibverbs.so and libibverbs.so.1 in {options.softrnic} are two files, which would be two networks: make the first a link"
    return ""


def letters_of(block: int) -> str:
    """A B B A, B A A B, in turn: what drifts over time hits both sides alike, and each side is first as often."""
    return ("ABBA", "BAAB")[block % 2]


def parse_collectives(text: str) -> list[str]:
    """Of a command line: names with commas between them."""
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in COLLECTIVES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no collective {unknown[0]!r}; there are {', '.join(COLLECTIVES)}")
    return chosen


# -- what the runs of a comparison measured, with the form that it has as JSON --


@dataclass(frozen=True)
class Key:
    """Which row of the report."""

    collective: str
    size: int  # that was asked for
    bytes: int  # that it really has


@dataclass(frozen=True)
class Measured:
    """One row in one run."""

    key: Key
    us: float
    wrong: int  # ranks that saw a wrong value


@dataclass(frozen=True)
class Run:
    """What rank 0 of one run wrote."""

    rows: list[Measured]
    evidence: list[Evidence]
    gpus: list[str]
    versions: dict[str, str]
    gdr: str

    @classmethod
    def from_json(cls, raw: dict[str, Any], place: int, network: str, name: str) -> "Run":
        """Of communicator number `place`. Raises Invalid unless its values are right, and its log proves that it ran on `network`."""
        evidence = [Evidence.from_json(one) for one in raw["evidence"][place]]
        gdr = check(evidence, network, f"run {name}")
        rows = [Measured(Key(row["collective"], row["size"], row["bytes"]), row["us"][place], row["wrong"][place]) for row in raw["rows"]]
        wrong = [row.key for row in rows if row.wrong]
        if wrong:
            first = f"{wrong[0].collective} of {size_text(wrong[0].size)}"
            raise Invalid(f"run {name}: wrong values over {network} in {first} and {len(wrong) - 1} other rows")
        return cls(rows, evidence, raw["gpus"], raw["versions"], gdr)


# -- checks before the first run --

# A trial of --check takes no longer.
TRIAL_S = 60


@dataclass
class Machine:
    """The results of the checks on this machine."""

    launched: Placement | None
    libnccl: Path = Path()
    gpus: int = 0
    meeting: Rendezvous | None = None  # of the processes that a launcher started


def checks_of(options: argparse.Namespace, machine: Machine) -> dict[str, Callable[[], str]]:
    """Each says in words what it has found, or raises Invalid with the cure."""

    def folder() -> str:
        files.check_writable(options.out)
        return f"{options.out} can be written"

    def plugin() -> str:
        sides_of(options)
        found = elf.read(options.plugin)
        return f"{options.plugin}: Ferrite {found.version}, for {found.machine}"

    def judge() -> str:
        # Only rank 0 needs it, at the end.
        return str(repository.program("ferrite"))

    def gpu() -> str:
        machine.gpus, _ = launch.seen_by_driver(options.libcuda, "")
        return f"{machine.gpus} on {os.uname().nodename}"

    def nccl() -> str:
        if options.libnccl:
            about, machine.libnccl = "", options.libnccl.resolve()
        else:
            version, machine.libnccl = launch.nccl_of_torch()
            about = f" of PyTorch {version}"
        return f"{launch.seen_by_driver('', machine.libnccl)[1]}{about}, {machine.libnccl}"

    def rdma() -> str:
        launch.check_softrnic(options.softrnic)
        if options.softrnic and machine.launched:
            launch.check_one_host(machine.launched)
        # A system may hide the ports of devices that can be used: they are looked at only if somebody asks.
        return launch.rdma_ports(options.softrnic) if options.check else ""

    def tcp() -> str:
        if not machine.launched:
            return "all ranks are on this machine"
        machine.meeting = launch.meet(machine.launched, options.limit)
        return f"ports {machine.launched.port + 1} and {machine.launched.port + 2} of {machine.launched.master}"

    found = {"report": folder, "plugin": plugin, "judge": judge, "RDMA": rdma, "GPUs": gpu, "NCCL": nccl, "TCP": tcp}
    return {name: one for name, one in found.items() if name != "judge" or is_first(machine.launched)}


def is_first(launched: Placement | None) -> bool:
    return not launched or launched.rank == 0


def look(options: argparse.Namespace) -> int:
    """--check: a line for each check; if all is well, a trial. Returns an exit code."""
    begin = time.monotonic()
    machine = Machine(launch.placement_of_launcher())
    failed = [name for name, one in checks_of(options, machine).items() if not is_well(name, one, machine)]
    of_all: list[list[str]] = machine.meeting.gather(failed) if machine.meeting else [failed]
    if not any(of_all) and not is_well("trial", lambda: trial(options, machine), machine):
        failed.append("trial")
    if is_first(machine.launched):
        others = [f"{', '.join(names)} to mend on rank {rank}" for rank, names in enumerate(of_all) if rank and names]
        here = f"{', '.join(failed) or 'nothing'} to mend{' here' if others else ''}"
        print(", ".join([here, *others, f"{time.monotonic() - begin:.0f} s"]), flush=True)
    return exit_codes.INVALID if failed or any(of_all) else exit_codes.GOOD


def is_well(name: str, one: Callable[[], str], machine: Machine) -> bool:
    """Prints the result of one check. If a launcher started several processes, only the first one prints results that are good."""
    try:
        found = one()
    except Invalid as why:
        print(f"FAIL  {name:7} {why}", flush=True)
        return False
    if is_first(machine.launched):
        print(f"ok    {name:7} {found}", flush=True)
    return True


def trial(options: argparse.Namespace, machine: Machine) -> str:
    """The shortest run over both sides."""
    limit = min(options.limit, TRIAL_S)
    with tempfile.TemporaryDirectory() as scratch:
        chosen = argparse.Namespace(**{**vars(options), "out": Path(scratch), "sizes": [8], "seconds": 0, "limit": limit})
        comparison = Comparison.of(chosen, machine)
        parts = ["A", "B"] if comparison.apart else ["AB"]
        runs = [run for number, part in enumerate(parts, 1) for run in comparison.run_part(number, part)]
    networks = " and ".join(dict.fromkeys(side.network for side in comparison.sides))
    gdr = "/".join(dict.fromkeys(run.gdr for run in runs))
    return f"{', '.join(options.collectives)} of 8 bytes over {networks}, values right, GPUDirect {gdr}"


# -- the comparison: blocks of runs until the verdict is clear, and the report of them --

# The module that each rank runs.
RANK = "nccl_net_ferrite.ab_rank"


def compare(options: argparse.Namespace) -> int:
    """Returns an exit code."""
    machine = Machine(launch.placement_of_launcher())
    for one in checks_of(options, machine).values():
        one()
    comparison = Comparison.of(options, machine)
    if comparison.apart:
        print(f"each side has processes of its own, which takes longer: {comparison.apart}", flush=True)
    try:
        comparison.run_all()
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(comparison.report_whole_blocks("was interrupted")) from interrupt
    except Invalid as why:
        if not comparison.blocks():
            raise
        raise Invalid(f"{why}\n  {comparison.report_whole_blocks('failed')}") from why
    # Only the process that has rank 0 has results.
    return comparison.report() if comparison.runs else exit_codes.GOOD


@dataclass
class Comparison:
    options: argparse.Namespace
    machine: Machine
    setup: Setup
    sides: tuple[Side, Side]
    placements: list[Placement]
    apart: str  # why each side has processes of its own; empty if they share them
    begin: float
    runs: list[Run] = field(default_factory=list)  # where rank 0 is
    codes: list[int] = field(default_factory=list)  # what the exit code would have been after each block, once there are enough

    @classmethod
    def of(cls, options: argparse.Namespace, machine: Machine) -> "Comparison":
        launched, apart = machine.launched, why_apart(options)
        task: dict[str, Any] = {
            "collectives": options.collectives,
            "sizes": options.sizes,
            "libnccl": str(machine.libnccl),
            "libcuda": options.libcuda,
            "limit": options.limit,
            "seconds": options.seconds / BLOCKS / (BLOCK if apart else 1),
        }
        setup = Setup(
            module=RANK,
            task=task,
            both=(*gpudirect(options.gdr, bool(options.softrnic)), *options.both),
            softrnic=options.softrnic,
            folder=options.out.resolve(),
            limit=options.limit,
            fabric=fabric_of(launched),
        )
        placements = [launched.at_port(launched.port + 2)] if launched else launch.placements_here(options.ranks, machine.gpus)
        return cls(options, machine, setup, sides_of(options), placements, apart, time.monotonic())

    def blocks(self) -> int:
        """Whole ones that were done."""
        return len(self.runs) // BLOCK

    def run_all(self) -> None:
        blocks = number = 0
        while self.continues(blocks):
            letters = letters_of(blocks)
            for part in [letters] if not self.apart else letters:
                number += 1
                self.runs += self.run_part(number, part)
            blocks += 1
            if self.runs:
                self.tell(blocks)

    def continues(self, blocks: int) -> bool:
        """Whether there are more runs after this number of blocks; the same for all processes that a launcher started."""
        wanted = self.wants_more(blocks)
        if not self.machine.meeting:
            return wanted
        try:
            return bool(self.machine.meeting.gather(wanted)[0])
        except OSError as error:
            raise Invalid(f"a process on another host, or of another rank, has ended ({error}); its own output says why") from error

    def wants_more(self, blocks: int) -> bool:
        if self.options.blocks:
            return blocks < int(self.options.blocks)
        is_clear = self.codes and self.codes[-1] != TOO_FEW_RUNS
        spent = time.monotonic() - self.begin
        return blocks == 0 or (not is_clear and spent * (blocks + 1) / blocks <= self.options.seconds)

    def run_part(self, number: int, letters: str) -> list[Run]:
        """Fresh processes with a communicator for each of `letters`. What rank 0 measured, nothing where rank 0 is not."""
        sides = [self.sides["AB".index(letter)] for letter in letters]
        name = f"{number:02}{letters if self.apart else ''}"
        variables, networks = sides[0].variables, [""]
        if not self.apart:
            # NCCL_NET would decide for all communicators.
            variables = tuple(one for one in self.sides[1].variables if one[0] != "NCCL_NET")
            networks = [side.network for side in sides]
        setup = replace(self.setup, task={**self.setup.task, "networks": networks, "seed": number})
        with launch.own_ports(1) as own:
            port = self.placements[0].port or own
            raw = run_side(setup, Side(name, "", variables), [one.at_port(port) for one in self.placements], name)
        if raw is None:
            return []
        return [Run.from_json(raw, place, side.network, name) for place, side in enumerate(sides)]

    def tell(self, blocks: int) -> None:
        """Prints the verdict so far, after this number of blocks."""
        gdr = gdr_of(self.runs, self.order())
        _, is_due = looks(blocks)
        if is_due:
            with tempfile.TemporaryDirectory() as scratch:
                self.codes.append(self.judged(Path(scratch), "", subprocess.DEVNULL))
        number = f"{blocks} of {self.options.blocks}" if self.options.blocks else str(blocks)
        most = "" if self.options.blocks else f" of at most {self.options.seconds}"
        clear = "" if not self.codes else ", undecided" if self.codes[-1] == TOO_FEW_RUNS else ", a verdict"
        print(f"block {number}: {time.monotonic() - self.begin:.0f} s{most}, GPUDirect {gdr}{clear}", flush=True)

    def order(self) -> str:
        return "".join(map(letters_of, range(self.blocks())))

    def report_whole_blocks(self, what: str) -> str:
        """Reports the complete blocks, if there are any. Returns what the report covers."""
        if not is_first(self.machine.launched):
            return "rank 0 has the report"
        done = f"{len(self.runs)} runs were done"
        whole = self.blocks() * BLOCK
        if not whole:
            return f"{done}, too few for a report"
        cut = f"The run {what}: {done}, and this report has the first {whole}"
        del self.runs[whole:]
        self.report(cut)
        return f"{done}; {self.setup.folder / 'report.md'} has the first {whole}"

    def report(self, note: str = "") -> int:
        """Writes the times of all runs, has them judged, and shows them as nccl-tests does; returns an exit code."""
        code = self.judged(self.setup.folder, note)
        table = nccl_tests_table(self.runs, self.order())
        (self.setup.folder / "nccl-tests.txt").write_text(table)
        print(table, end="", flush=True)
        return code

    def judged(self, folder: Path, note: str, output: int | None = None) -> int:
        raw = folder / "raw.json"
        files.write_json(raw, self.times(note))
        return judge(raw, folder, self.options.effect, output)

    def shared_gpus(self) -> list[str]:
        ranks = len(self.placements) if not self.machine.launched else self.machine.launched.ranks_here
        if ranks <= self.machine.gpus:
            return []
        return [
            f"{ranks} ranks share {self.machine.gpus} GPU: the times are mostly those of the driver's time slices, and hide differences"
        ]

    def shared_profiler(self, nccl: str) -> list[str]:
        if self.apart or tuple(map(int, nccl.split("."))) < (2, 28, 3):
            return []
        return ["both sides pay for Ferrite's profiler, since they share their processes; --fresh gives A none"]

    def times(self, note: str) -> dict[str, Any]:
        """What `ferrite judge` reads (lab/src/report/times.rs): what A and B are, the side of each run, lines for the report, and for
        each row the microseconds of a call in each run of A (a_us) and of B (b_us), in their order."""
        options, runs, order = self.options, self.runs, self.order()
        first, gdr, of_side = runs[0], gdr_of(runs, order), runs_of_sides(runs, order)
        plugin, baseline = files.library(options.plugin), files.library(options.baseline) if options.baseline else None
        libnccl = files.library(self.machine.libnccl)
        other = "another Ferrite" if self.apart else "the same Ferrite"
        side_a = other if baseline else f"NCCL {first.versions['nccl']}'s built-in IB transport"
        variables = variables_of(self.setup, self.sides, not self.apart)
        facts = [
            f"command: `{' '.join(sys.argv)}`",
            f"NCCL {first.versions['nccl']}: sha256 `{libnccl.sha256}`",
            f"ranks: {'; '.join(first.gpus)}",
            *([f"plugin of A: {baseline.text()}"] if baseline else []),
            f"plugin{' of B' if baseline else ''}: {plugin.text()}",
            *(
                f"variables of {side}: " + (" ".join(f"`{name}={value}`" for name, value in sorted(chosen.items())) or "none")
                for side, chosen in variables.items()
            ),
            f"{order.count('A')} runs of each side in {time.monotonic() - self.begin:.0f} s; each time is the median of a run's turns",
            *(["on the software device, both ends on one machine: no statement about a network card"] if options.softrnic else []),
        ]
        return {
            "schema": "ferrite-times/1",
            "title": f"Ferrite against {side_a}, {len(first.gpus)} ranks, GPUDirect {gdr}",
            "a": side_a,
            "b": "Ferrite",
            "order": order,
            "run": f"{FRESH} ({self.apart})" if self.apart else PAIRED,
            "looks": 0 if options.blocks else looks(self.blocks())[0],
            "notes": [*([note] if note else []), *self.shared_gpus(), *self.shared_profiler(first.versions["nccl"])],
            "facts": facts,
            "about": {
                "versions": first.versions,
                "plugin": asdict(plugin),
                "baseline": asdict(baseline) if baseline else None,
                "libnccl": asdict(libnccl),
                "variables": variables,
                "gdr": gdr,
                "gpus": first.gpus,
                "evidence": [[asdict(one) for one in run.evidence] for run in runs],
            },
            "rows": [
                {
                    **asdict(row.key),
                    "bus": COLLECTIVES[row.key.collective](len(first.gpus)),
                    **{f"{letter}_us": [run.rows[place].us for run in of_side[side]] for side, letter in enumerate("ab")},
                }
                for place, row in enumerate(first.rows)
            ],
        }


def fabric_of(launched: Placement | None) -> str:
    """Name of a software network: the same for all ranks of this comparison, and for no others on this machine."""
    named = os.environ.get("SOFTRNIC_FABRIC") if launched else None
    return named or (f"{os.getuid()}-{launched.port}" if launched else str(os.getpid()))


def judge(times: Path, folder: Path, effect: int, output: int | None = None) -> int:
    """Has the program ferrite judge the times in such a file, and write the report of them into `folder`; returns its exit code."""
    command: list[str | Path] = [repository.program("ferrite"), "judge", times, "--find", str(effect), "--report", folder]
    sys.stdout.flush()
    code = subprocess.run(command, check=False, stdout=output).returncode
    if code < 0:
        raise Invalid(f"{command[0]} was ended by signal {-code}; the times are in {times}")
    return code


def runs_of_sides(runs: list[Run], order: str) -> list[list[Run]]:
    """Those of A, and those of B."""
    return [[run for run, letter in zip(runs, order) if letter == side] for side in "AB"]


def gdr_of(runs: list[Run], order: str) -> str:
    """The one GPUDirect state of all runs."""
    a, b = ({run.gdr for run in of_side} for of_side in runs_of_sides(runs, order))
    if a != b or len(a) != 1:
        raise Invalid(f"GPUDirect differs: A {sorted(a)}, B {sorted(b)}; --gdr on or off makes it the same")
    return a.pop()


def nccl_tests_table(runs: list[Run], order: str) -> str:
    """Medians in the layout of nccl-tests, with A where that has its out-of-place results and B where it has those in place."""
    of_side, lines = runs_of_sides(runs, order), []
    for place, row in enumerate(runs[0].rows):
        key = row.key
        if not place or runs[0].rows[place - 1].key.collective != key.collective:
            side_heads = "".join(f"{name:>10}{'algbw':>8}{'busbw':>8}" for name in ("A: time", "B: time"))
            lines += [f"# {key.collective}, {len(runs[0].gpus)} ranks", f"#{'size':>12}{'count':>14}{'type':>10}{side_heads}"]
            lines += [f"#{'(B)':>12}{'(elements)':>14}{'':>10}" + 2 * f"{'(us)':>10}{'(GB/s)':>8}{'(GB/s)':>8}"]
        line = f"{key.bytes:>13}{key.bytes // ELEMENT:>14}{'float':>10}"
        for side in of_side:
            us = median(run.rows[place].us for run in side)
            speed = key.bytes / us / 1000
            line += f"{us:10.2f}{speed:8.2f}{speed * COLLECTIVES[key.collective](len(runs[0].gpus)):8.2f}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def variables_of(setup: Setup, sides: tuple[Side, Side], is_paired: bool) -> dict[str, dict[str, str]]:
    """The variables that make the sides, and those of NCCL that both inherit."""
    inherited = {name: value for name, value in os.environ.items() if name.startswith("NCCL_") and name not in OVERRIDDEN}
    a, b = ({"ncclConfig_t.netName": side.network} if is_paired else dict(side.variables) for side in sides)
    plugin = {"NCCL_NET_PLUGIN": dict(sides[1].variables)["NCCL_NET_PLUGIN"]} if is_paired else {}
    return {"A": a, "B": b, "both": inherited | dict(setup.both) | plugin}


def arguments() -> argparse.Namespace:
    parser = options.parser(__doc__)
    parser.add_argument("--check", action="store_true", help="check in seconds whether the comparison can run, and end")
    parser.add_argument("--plugin", type=Path, default=repository.PLUGIN, help="side B's library")
    parser.add_argument("--baseline", type=Path, metavar="PLUGIN", help="side A: this library of Ferrite instead of NCCL's own transport")
    parser.add_argument("--libnccl", type=Path, metavar="FILE", help="measure this libnccl.so.2, and not PyTorch's")
    parser.add_argument("--libcuda", default="libcuda.so.1", metavar="FILE", help="the CUDA driver; default libcuda.so.1")
    parser.add_argument(
        "--collectives",
        type=parse_collectives,
        default=["all_reduce", "send_recv"],
        metavar="NAME,NAME",
        help=f"of {', '.join(COLLECTIVES)}; default all_reduce,send_recv",
    )
    parser.add_argument(
        "--sizes",
        type=options.parse_sizes,
        default=options.parse_sizes("8,1K,32K,1M,16M,128M"),
        metavar="A..B|A,B,C",
        help="bytes, such as 8..64M (every fourth power of 2); default 8,1K,32K,1M,16M,128M",
    )
    parser.add_argument(
        "--seconds", type=options.number(1, 86400), default=240, help="the longest time; less if the verdict is clear; default 240"
    )
    parser.add_argument(
        "--blocks", type=options.number(1, 100), metavar="N", help="N blocks of four runs, whatever the time and the verdict"
    )
    parser.add_argument(
        "--effect",
        type=options.number(3, 1000),
        default=3,
        metavar="PERCENT",
        help="a difference that must not be missed; default 3",
    )
    parser.add_argument("--ranks", type=options.number(2, 64), help="on one machine; default: its GPUs, at least 2")
    parser.add_argument("--fresh", action="store_true", help="each side in processes of its own")
    options.add_gdr(parser, "GPUDirect on both sides")
    options.add_both(parser, "both sides")
    for side in "ab":
        parser.add_argument(
            f"--only-{side}",
            type=options.variable,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"a variable for side {side.upper()} alone",
        )
    options.add_softrnic(parser, "both sides on the software device in DIR; all ranks on one machine")
    options.add_limit(parser, 10, 300, "one run")
    options.add_out(parser, "report-ab")
    parser.add_argument("--again", type=Path, metavar="FILE", help="a raw.json to judge once more, into --out")
    return parser.parse_args()


def run(chosen: argparse.Namespace) -> int:
    if chosen.again:
        files.check_writable(chosen.out)
        return judge(chosen.again, chosen.out, chosen.effect)
    return look(chosen) if chosen.check else compare(chosen)


def main() -> int:
    chosen = arguments()
    return exit_codes.of_program(lambda: run(chosen))
