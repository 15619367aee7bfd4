"""Whether what a case left is what it had to be. Every rule can fail; what it names is what was seen."""

from abtest import evidence
from abtest.plan import Invalid, text_of

from .plan import GIVES_UP_S, Case
from .runs import Outcome

NO_GDR = "no GPUDirect RDMA"
# Errors of NCCL that say that a peer or the system failed.
SYSTEM_ERROR, REMOTE_ERROR = 2, 6


def of(outcome: Outcome, network: str, version: str) -> tuple[list[str], list[str]]:
    """What is wrong with it, and what is worth telling. `version` is NCCL's."""
    case = outcome.case
    wrong, told = [], []
    try:
        gdr = evidence.check([outcome.evidence[n] for n in sorted(outcome.evidence)], network, case.name())
    except Invalid as why:
        return [str(why)], []
    told.append(f"via NET/{network}" + ("/…/GDRDMA" if gdr == "on" else ""))
    expected = "off" if case.gdr == "off" else "on"
    if gdr != expected:
        wrong.append(f"GPUDirect is {gdr}, not {expected}")
    wrong += values(outcome)
    count = sum(len(result["rows"]) for result in outcome.results.values())
    told.append(f"{count} results")
    check = {"collectives": choice, "setups": setup, "flush": flush, "register": register, "abort": abort}[case.part]
    more_wrong, more_told = check(outcome, network)
    counted_wrong, counted_told = calls(outcome, version)
    return wrong + more_wrong + counted_wrong, told + more_told + counted_told


def values(outcome: Outcome) -> list[str]:
    found = [(rank, row) for rank, result in outcome.results.items() for row in result["rows"] if row["wrong"]]
    if not found:
        return []
    rank, row = found[0]
    place = "in place" if row["in_place"] else "out of place"
    others = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return [f"rank {rank}, {row['operation']} of {text_of(row['size'])} {place}: {row['wrong']}{others}"]


def choice(outcome: Outcome, network: str) -> tuple[list[str], list[str]]:
    """NCCL used the algorithm and the protocol that were asked for, as far as it tells."""
    case = outcome.case
    others = sorted(used for used in outcome.choices if used != (case.algo, case.proto))
    if others:
        return [f"NCCL used {' '.join(others[0])}"], []
    return [], [] if outcome.choices else ["NCCL's log does not tell what it used"]


def peak(outcome: Outcome, kind: str) -> int:
    return max((getattr(usage, kind) for usage in outcome.usage.values()), default=0)


def setup(outcome: Outcome, network: str) -> tuple[list[str], list[str]]:
    """The way of registration that the machine has, and a line in the log if it has none."""
    case, wrong, told = outcome.case, [], []
    if network == "Ferrite":
        lines = [line for log in outcome.logs.values() for line in log.splitlines() if NO_GDR in line]
        if bool(lines) != (case.gdr == "off"):
            wrong.append(f"{len(lines)} lines say \"{NO_GDR}\"")
        if lines:
            told.append("log: \"" + lines[0][lines[0].index(NO_GDR):] + "\"")
    if not outcome.usage:
        return wrong, told
    by_address, by_dmabuf = peak(outcome, "by_address"), peak(outcome, "by_dmabuf")
    told.append(f"GPU memory registered at a time: {by_address} by address, {by_dmabuf} by dma-buf")
    # A single one by address may be a trial of what the machine can do.
    is_right = {
        "off": by_address == 0 and by_dmabuf == 0,
        "peermem": by_address > 1 and by_dmabuf == 0,
        "dmabuf": by_address == 0 and by_dmabuf > 1,
        "both": by_address <= 1 and by_dmabuf > 1,
        "on": by_address + by_dmabuf > 1,
    }[case.gdr]
    return wrong + ([] if is_right else [f"registered {by_address} by address and {by_dmabuf} by dma-buf"]), told


def flush(outcome: Outcome, network: str) -> tuple[list[str], list[str]]:
    """Flushes where they are asked for, and nothing of them where not. READs are flushes: NCCL reads nothing else."""
    if outcome.reads is None:
        return [], ["READs are not counted on this device"]
    wrong = [] if (outcome.reads > 0) == outcome.case.is_flushing else [f"{outcome.reads} flushes"]
    told = [f"{outcome.reads} flushes"] + ([f"at most {peak(outcome, 'queue_pairs')} queue pairs"] if outcome.usage else [])
    return wrong, told


def register(outcome: Outcome, network: str) -> tuple[list[str], list[str]]:
    if not outcome.usage:
        return [], []
    seen, least = peak(outcome, "registered_bytes"), max(result["registered_bytes"] for result in outcome.results.values())
    wrong = [] if seen >= least else [f"at most {seen} bytes were registered: not the application's {least}"]
    return wrong, [f"{seen >> 20} MiB registered, {least >> 20} MiB of them the application's"]


def calls(outcome: Outcome, version: str) -> tuple[list[str], list[str]]:
    """What NCCL called, where that was counted."""
    case, seen = outcome.case, outcome.calls
    if not seen:
        return [], []
    told = [f"calls: {seen.by_address} of regMr for GPU memory, {seen.by_dmabuf} of regMrDmaBuf, {seen.flushes} of iflush, "
            f"{seen.sends} of isend, {seen.truncated} of them truncated"]
    wrong = []
    ways = {"off": (False, False), "peermem": (True, False), "dmabuf": (False, True), "both": (False, True)}
    if case.part == "setups" and case.gdr in ways and (seen.by_address > 0, seen.by_dmabuf > 0) != ways[case.gdr]:
        wrong.append(f"NCCL called regMr for GPU memory {seen.by_address} times, regMrDmaBuf {seen.by_dmabuf} times")
    if case.part == "flush" and (seen.flushes > 0) != case.is_flushing:
        wrong.append(f"{seen.flushes} calls of iflush")
    # It offers the whole of a registered buffer, to a receiver that posts a step of it at a time; later ones post the whole.
    if case.part == "register" and version.startswith("2.21.") and not seen.truncated:
        wrong.append("no send was truncated: the registered buffers were not used")
    return wrong, told


def abort(outcome: Outcome, network: str) -> tuple[list[str], list[str]]:
    """The survivors are told in time, in words that name the dead, and may go."""
    wrong, told = [], []
    victim = outcome.case.ranks - 1
    for rank, result in sorted(outcome.results.items()):
        found = result["abort"]
        if found["code"] not in (SYSTEM_ERROR, REMOTE_ERROR):
            wrong.append(f"rank {rank}: {found['error']}")
        told.append(f"rank {rank}: error {found['code']} after {found['error_s']:.2f} s (the device gives up after "
                    f"{GIVES_UP_S:.2f} s), ncclCommAbort took {found['abort_s']:.2f} s")
        if network == "Ferrite":
            pid = f"process {outcome.pids.get(victim)}"
            lines = [line for line in outcome.logs[rank].splitlines() if "WARN" in line and f"{pid} " in line]
            if rank in neighbours(outcome.case) and not lines:
                wrong.append(f"rank {rank}: no warning names the dead {pid}")
            told += [f"log: \"{line[line.index('WARN'):]}\"" for line in lines[:1]]
    return wrong, told


def neighbours(case: Case) -> set[int]:
    """Who surely talked with the last rank: those beside it in a ring."""
    return {(case.ranks - 2) % case.ranks, 0}


def pairs(cases: list[Case], outcomes: dict[Case, Outcome]) -> list[str]:
    """What only shows by comparison: without flushes no queue pair for them exists."""
    wrong = []
    for case in cases:
        if case.part != "flush" or case.is_flushing:
            continue
        other = Case(**{**vars(case), "is_flushing": True})
        if case not in outcomes or other not in outcomes or not outcomes[case].usage or not outcomes[other].usage:
            continue
        without, with_flushes = (peak(outcomes[one], "queue_pairs") for one in (case, other))
        if without >= with_flushes:
            wrong.append(f"{case.name()}: {without} queue pairs without flushes, {with_flushes} with them")
    return wrong
