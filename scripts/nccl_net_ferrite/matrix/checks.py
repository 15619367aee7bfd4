"""Whether the outcome of a case is right."""

import re
from collections.abc import Mapping
from dataclasses import replace

from .. import evidence
from ..errors import Invalid
from ..sizes import text_of
from .case_run import Outcome
from .cases import RETRIES_END_S, Case
from .results import Findings

NO_GDR = "no GPUDirect RDMA"
# Errors of NCCL that say that a peer or the system failed.
SYSTEM_ERROR, REMOTE_ERROR = 2, 6
# What Ferrite's log says of an NCCL that forgets the errors of its network (2.26 and 2.27).
DROPPED = "do not pass this error on"


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
    else:
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
    return [f"rank {rank}, {row.operation} of {text_of(row.size)} {place}: {row.wrong}{others}"]


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
    if outcome.reads is None:
        return Findings(seen=["READs are not counted on this device"])
    found = Findings(seen=[f"{outcome.reads} flushes"])
    if (outcome.reads > 0) != outcome.case.is_flushing:
        found.wrong.append(f"{outcome.reads} flushes")
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
