#!/usr/bin/env python3
"""Holds up processes, paths and cards at random, and counts how often the hang report names the right one.

    scripts/hang_injections.py                            # 20 cases on the software device
    scripts/hang_injections.py --cases 500 --parallel 12  # on a machine with 16 processors
    scripts/hang_injections.py --case 17 --keep           # one case again, with all of its logs

It needs a folder as scripts/build.sh makes it (--dist) and Python's standard library, neither NCCL nor a GPU: processes call the
plugin as NCCL's proxies do. Each case starts 8 to 64 of them on a fabric of its own, has them run collective operations over rings, and
then does one of the following to one of them. Case N of a seed is the same each time, but for its timing.

    stopped       SIGSTOP
    late          it begins an operation later than the others, after the threshold
    killed        SIGKILL
    never called  it does not begin an operation, and makes no call
    one way       everything from one card to another is lost
    both ways     and everything in the other direction
    card          a card fails permanently
    order         it begins the operations of two communicators in the other order
    busy, idle, short    nothing is wrong: operations go on; there are none; one process is late for less than the threshold

A case counts as found if a process reports (or, for a killed one, gets an error), and as located if most reports name the process that
was held up, or the two ends of the connection and its card. Exit code 0: all aims are met; 1: not; 2: it could not be tried.
"""

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

PROCESS, PATH, CARD, NOTHING = "process", "path", "card", "nothing"
# The kinds of cases: what the report has to name, and their weight among all cases.
KINDS = {
    "stopped": (PROCESS, 2),
    "late": (PROCESS, 2),
    "killed": (PROCESS, 2),
    "never called": (PROCESS, 2),
    "one way": (PATH, 2),
    "both ways": (PATH, 2),
    "card": (CARD, 2),
    "order": (PROCESS, 2),
    "busy": (NOTHING, 2),
    "idle": (NOTHING, 1),
    "short": (NOTHING, 1),
}
# The verdicts that a report may have for each kind.
PATH_VERDICTS = {"Recovering", "DataLost", "AcknowledgementsLost", "ClearToSendsLost", "Unacknowledged"}
VERDICTS = {
    "stopped": {"PeerSilent"},
    "late": {"PeerHasNotSent", "PeerHasNotAsked"},
    "never called": {"PeerHasNotSent", "PeerHasNotAsked"},
    "one way": PATH_VERDICTS,
    "both ways": PATH_VERDICTS,
    "card": {"Recovering"},
    "order": {"OrderDiffers"},
}
AIMS = {"precision": 0.98, "recall": 0.99, "located": 0.96, "after": 2.0}
# The limit of the software device.
DEVICES = 8
# Messages of a short operation on each connection, receives that are posted ahead, and bytes.
STEPS, DEPTH, BYTES = 6, 4, 4096
START_LIMIT_S, SEARCH_S = 60, 9


@dataclass
class Case:
    number: int
    kind: str
    ranks: int
    devices: int  # rank r uses number r modulo this
    rings: list[list[list[int]]]  # of each communicator: the orders of its ranks
    victim: int
    steps: int  # messages of an operation on each connection
    named: bool  # whether operations have names, as with NCCL 2.28.3 and later
    hold_s: float
    wait_s: float  # between the first operations and the injection
    threshold_s: int

    def device(self, rank: int) -> int:
        return rank % self.devices

    def connections(self) -> list[tuple[int, int]]:
        """Senders and receivers."""
        return [(ring[at - 1], rank) for rings in self.rings for ring in rings for at, rank in enumerate(ring)]

    def path(self) -> tuple[int, int]:
        """The devices of the connection over which nothing arrives."""
        pairs = [(self.device(sender), self.device(receiver)) for sender, receiver in self.connections()]
        ours = [pair for pair, (sender, _) in zip(pairs, self.connections()) if sender == self.victim and pair[0] != pair[1]]
        return (ours or [pair for pair in pairs if pair[0] != pair[1]])[0]

    def pairs(self) -> set[frozenset[int]]:
        """The ranks at both ends of the connections that are cut, if any."""
        kind, _ = KINDS[self.kind]
        cut = set(self.path()) if kind == PATH else {self.device(self.victim)}
        found = set()
        for sender, receiver in self.connections():
            ends = (self.device(sender), self.device(receiver))
            if (kind == PATH and set(ends) == cut) or (kind == CARD and cut & set(ends)):
                found.add(frozenset((sender, receiver)))
        return found


SIZES = (8, 12, 16, 24, 32, 48, 64)


def case_of(seed: int, number: int, threshold_s: int, kinds: list[str], sizes: list[int]) -> Case:
    # Each block of cases has each kind as often as its weight, in an order of its own.
    block = [kind for kind in kinds for _ in range(KINDS[kind][1])]
    random.Random(f"{seed}/block {number // len(block)}").shuffle(block)
    kind = block[number % len(block)]
    chance = random.Random(f"{seed}/{number}")
    ranks = chance.choice(sizes)
    devices = chance.choice([2, 4, DEVICES])

    def ring() -> list[int]:
        order = list(range(ranks))
        if chance.random() < 0.5:
            chance.shuffle(order)
        return order

    communicators = 2 if kind == "order" else chance.choice([1, 1, 2])
    channels = chance.choice([1, 2]) if ranks <= 32 else 1
    hold = {"late": threshold_s + 3.0, "short": threshold_s * chance.uniform(0.3, 0.6)}.get(kind, 0.0)
    # No rank completes an AllReduce before all have begun it. An operation that some ranks complete earlier does not wait for others that
    # are begun in another order.
    whole = 2 * (ranks - 1)
    steps = whole if kind == "order" else chance.choice([STEPS, whole if ranks <= 16 else STEPS])
    return Case(
        number=number,
        kind=kind,
        ranks=ranks,
        devices=devices,
        rings=[[ring() for _ in range(channels)] for _ in range(communicators)],
        victim=chance.randrange(ranks),
        steps=steps,
        # Without names nobody can know that orders differ.
        named=kind == "order" or chance.random() < 0.7,
        hold_s=hold,
        wait_s=chance.uniform(0.1, 0.8),
        threshold_s=threshold_s,
    )


# -- a process, which calls the plugin as NCCL's proxies do --

C = ctypes
POINTER = C.c_void_p
# Of all versions of the interface, as far as they are the same.
SLOTS = (
    *("name", "init", "devices", "getProperties", "listen", "connect", "accept", "regMr", "regMrDmaBuf", "deregMr"),
    *("isend", "irecv", "iflush", "test", "closeSend", "closeRecv", "closeListen"),
)
LOGGER = C.CFUNCTYPE(None, C.c_int, C.c_ulong, C.c_char_p, C.c_int, C.c_char_p, C.c_char_p)
WARN = 2
COLLECTIVE, PROXY = 2, 8


class Failed(Exception):
    """A call of the plugin returned an error."""


class Table(C.Structure):
    _fields_ = tuple((slot, POINTER) for slot in SLOTS)


class ProfilerTable(C.Structure):
    _fields_ = tuple((slot, POINTER) for slot in ("name", "init", "start", "stop", "record", "finalize"))


class Net:
    """The plugin for one communicator: version 12 of the interface where operations have names, else version 8."""

    def __init__(self, library: C.CDLL, communicator: int, named: bool, logger: Any) -> None:
        self.named = named
        self.table = Table.in_dll(library, "ncclNetPlugin_v12" if named else "ncclNetPlugin_v8")
        self.context, self.logger = POINTER(), logger
        handle, size = ([POINTER], C.c_size_t) if named else ([], C.c_int)
        first = [POINTER] if named else []
        self.listen_ = self.bind("listen", *first, C.c_int, POINTER, POINTER)
        self.connect_ = self.bind("connect", *first, C.c_int, POINTER, POINTER, POINTER)
        self.accept_ = self.bind("accept", POINTER, POINTER, POINTER)
        self.register_ = self.bind("regMr", POINTER, POINTER, C.c_size_t, C.c_int, POINTER)
        self.send_ = self.bind("isend", POINTER, POINTER, size, C.c_int, POINTER, *handle, POINTER)
        self.receive_ = self.bind("irecv", POINTER, C.c_int, POINTER, POINTER, POINTER, POINTER, *handle, POINTER)
        self.test_ = self.bind("test", POINTER, POINTER, POINTER)
        self.size = size
        if named:
            config = C.c_int(-1)
            init = self.bind("init", POINTER, C.c_uint64, POINTER, POINTER, POINTER)
            self.check("init", init(C.addressof(self.context), communicator, C.addressof(config), C.cast(logger, POINTER), None))
        else:
            self.check("init", self.bind("init", POINTER)(C.cast(logger, POINTER)))

    def bind(self, slot: str, *types: Any) -> Any:
        return C.CFUNCTYPE(C.c_int, *types)(getattr(self.table, slot))

    def check(self, call: str, code: int) -> None:
        if code:
            raise Failed(f"{call} returned {code}")

    def of_communicator(self) -> list[POINTER]:
        return [self.context] if self.named else []

    def listen(self, device: int) -> tuple[bytes, POINTER]:
        handle, listener = C.create_string_buffer(128), POINTER()
        self.check("listen", self.listen_(*self.of_communicator(), device, C.addressof(handle), C.addressof(listener)))
        return handle.raw, listener

    def connect(self, device: int, handle: Any) -> POINTER | None:
        comm, unused = POINTER(), POINTER()
        code = self.connect_(*self.of_communicator(), device, C.addressof(handle), C.addressof(comm), C.addressof(unused))
        self.check("connect", code)
        return comm if comm.value else None

    def accept(self, listener: POINTER) -> POINTER | None:
        comm, unused = POINTER(), POINTER()
        self.check("accept", self.accept_(listener, C.addressof(comm), C.addressof(unused)))
        return comm if comm.value else None

    def register(self, comm: POINTER, memory: Any) -> POINTER:
        region = POINTER()
        self.check("regMr", self.register_(comm, C.addressof(memory), BYTES, 1, C.addressof(region)))
        return region


class Connection:
    """One end, and the messages of the operation that it is at."""

    def __init__(self, net: Net, comm: POINTER, tag: int, sends: bool) -> None:
        self.net, self.comm, self.tag, self.sends = net, comm, tag, sends
        self.memory = C.create_string_buffer(BYTES)
        self.region = net.register(comm, self.memory)
        self.request, self.done, self.sizes = POINTER(), C.c_int(), (C.c_int * 8)()
        self.data = (POINTER * 1)(C.addressof(self.memory))
        self.lengths, self.tags, self.regions = (net.size * 1)(BYTES), (C.c_int * 1)(tag), (POINTER * 1)(self.region)
        self.handles = (POINTER * 1)()
        self.requests: list[int] = []
        self.begun = self.finished = 0

    def begin(self) -> bool:
        self.request.value = None
        if self.sends:
            handle: list[Any] = [None] if self.net.named else []
            code = self.net.send_(self.comm, C.addressof(self.memory), BYTES, self.tag, self.region, *handle, C.addressof(self.request))
        else:
            handle = [C.addressof(self.handles)] if self.net.named else []
            places = [C.addressof(one) for one in (self.data, self.lengths, self.tags, self.regions)]
            code = self.net.receive_(self.comm, 1, *places, *handle, C.addressof(self.request))
        self.net.check("isend" if self.sends else "irecv", code)
        if self.request.value:
            self.requests.append(self.request.value)
            self.begun += 1
        return bool(self.request.value)

    def test(self) -> bool:
        """Whether the oldest request is done."""
        if not self.requests:
            return False
        code = self.net.test_(self.requests[0], C.addressof(self.done), C.addressof(self.sizes))
        self.net.check("test", code)
        if self.done.value:
            self.requests.pop(0)
            self.finished += 1
        return bool(self.done.value)


class Profiler:
    """NCCL's side of the profiler in the plugin's library."""

    def __init__(self, library: C.CDLL, communicator: int, rank: int, ranks: int, steps: int, logger: Any) -> None:
        table = ProfilerTable.in_dll(library, "ncclProfiler_v6")
        self.rank, self.steps, self.context, mask = rank, steps, POINTER(), C.c_int()
        types = (POINTER, C.c_uint64, POINTER, C.c_char_p, C.c_int, C.c_int, C.c_int, POINTER)
        init = C.CFUNCTYPE(C.c_int, *types)(table.init)
        name = f"group{communicator}".encode()
        code = init(C.addressof(self.context), communicator, C.addressof(mask), name, ranks, ranks, rank, C.cast(logger, POINTER))
        if code:
            raise Failed(f"the profiler's init returned {code}")
        self.start_ = C.CFUNCTYPE(C.c_int, POINTER, POINTER, POINTER)(table.start)
        self.stop_ = C.CFUNCTYPE(C.c_int, POINTER)(table.stop)
        self.function = C.create_string_buffer(b"AllReduce")

    def start(self, *words: int) -> int:
        event, handle = (C.c_uint64 * 14)(*words), POINTER()
        self.start_(self.context, C.addressof(handle), C.addressof(event))
        return handle.value or 0

    def collective(self, number: int) -> int:
        return self.start(COLLECTIVE, 0, self.rank, number, C.addressof(self.function))

    def proxy(self, parent: int, peer: int, sends: bool) -> int:
        return self.start(PROXY, parent, self.rank, os.getpid(), peer | self.steps << 32, 1 << 19 | int(sends) << 32)

    def stop(self, event: int) -> None:
        if event:
            self.stop_(event)


class Rank:
    def __init__(self, case: Case, number: int, plugin: str, folder: Path, parent: socket.socket) -> None:
        self.case, self.number, self.parent = case, number, parent
        self.log = (folder / f"rank{number}.log").open("w")
        self.logger = LOGGER(self.on_log)
        library = C.CDLL(plugin)
        self.nets = [Net(library, 100 + at, case.named, self.logger) for at in range(len(case.rings))]
        self.profilers = []
        if case.named:
            self.profilers = [Profiler(library, 100 + at, number, case.ranks, case.steps, self.logger) for at in range(len(case.rings))]
        # Some hundred processes on a machine: each lets the others run.
        self.pause_s = 0.0005 * max(1, case.ranks / 8)

    def on_log(self, level: int, _flags: int, _file: bytes, _line: int, _format: bytes, text: bytes) -> None:
        words = text.decode(errors="replace")
        self.log.write(f"{time.time():.3f} {level} {words}\n")
        self.log.flush()

    def tell(self, **what: Any) -> None:
        self.parent.sendall((json.dumps(what) + "\n").encode())

    def command(self) -> dict[str, Any] | None:
        try:
            text = self.parent.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if not text:
            os._exit(0)
        found: dict[str, Any] = json.loads(text)
        return found

    def run(self) -> None:
        case, device = self.case, self.case.device(self.number)
        listeners = [[net.listen(device) for _ in rings] for net, rings in zip(self.nets, case.rings)]
        self.tell(handles=[[handle.hex() for handle, _ in ring] for ring in listeners])
        handles = json.loads(self.parent.makefile("r").readline())
        self.ends: list[list[tuple[Connection, Connection]]] = []
        for net, mine, theirs in zip(self.nets, listeners, handles):
            ends = []
            for (_, listener), handle in zip(mine, theirs):
                to, send, receive = C.create_string_buffer(bytes.fromhex(handle), 128), None, None
                while not (send and receive):
                    send = send or net.connect(device, to)
                    receive = receive or net.accept(listener)
                    time.sleep(self.pause_s)
                ends.append((send, receive))
            self.ends.append([])
            for at, (send, receive) in enumerate(ends):
                ring = case.rings[len(self.ends) - 1][at]
                before = ring[ring.index(self.number) - 1]
                self.ends[-1].append((Connection(net, send, self.number, True), Connection(net, receive, before, False)))
        self.program()

    def program(self) -> None:
        order, last = list(range(len(self.case.rings))), sys.maxsize
        for iteration in itertools.count():
            found = self.command() or {}
            what = found.get("do")
            if what == "idle":
                last = found["from"]
            elif what:
                self.tell(did=what, at=time.time())
            if iteration == last:
                self.tell(did="idle", at=time.time())
            if what == "never called" or iteration == last:
                time.sleep(3600)
            if what in ("late", "short"):
                time.sleep(self.case.hold_s)
            for at in reversed(order) if what == "order" else order:
                self.operation(at, iteration)
            self.tell(iteration=iteration + 1)

    def operation(self, at: int, number: int) -> None:
        ends = self.ends[at]
        events: list[int] = []
        if self.profilers:
            profiler = self.profilers[at]
            whole = profiler.collective(number)
            for ring in self.case.rings[at]:
                place = ring.index(self.number)
                events.append(profiler.proxy(whole, ring[(place + 1) % len(ring)], True))
                events.append(profiler.proxy(whole, ring[place - 1], False))
        for send, receive in ends:
            send.begun = send.finished = receive.begun = receive.finished = 0
        steps = self.case.steps
        while any(send.finished < steps or receive.finished < steps for send, receive in ends):
            moved = False
            for send, receive in ends:
                while receive.begun < min(steps, receive.finished + DEPTH) and receive.begin():
                    moved = True
                while receive.test():
                    moved = True
                # A rank sends its own part first, and then each part that has arrived.
                while send.begun < min(steps, receive.finished + 1, send.finished + DEPTH) and send.begin():
                    moved = True
                while send.test():
                    moved = True
            time.sleep(0 if moved else self.pause_s)
        for event in events:
            self.profilers[at].stop(event)

    def close(self) -> None:
        for ends, net in zip(self.ends, self.nets):
            for send, receive in ends:
                net.bind("closeSend", POINTER)(send.comm)
                net.bind("closeRecv", POINTER)(receive.comm)


# -- a case --


@dataclass
class Report:
    """The cause that a process names."""

    rank: int
    at: float
    verdict: str
    ranks: list[int]  # the process that is named; for a path, both
    recovery: str  # the state of the path's rails, as the first of the two sees them
    text: str


@dataclass
class Result:
    case: Case
    reports: list[Report] = field(default_factory=list)
    asked: str = ""  # what ferrite hang all says
    asked_code: int = -1
    asked_s: float = 0.0
    injected: float = 0.0
    trouble: str = ""
    found: bool = False
    located: bool = False
    located_by_asking: bool = False
    after_s: float | None = None  # the first report, after the threshold

    def is_positive(self) -> bool:
        return KINDS[self.case.kind][0] != NOTHING


class Job:
    """The processes of a case, as the one that starts them sees them."""

    def __init__(self, case: Case, dist: Path, folder: Path) -> None:
        self.case, self.dist, self.folder = case, dist, folder
        self.pids: list[int] = []
        self.sockets: list[socket.socket] = []
        self.rest = [""] * case.ranks
        self.said: list[list[dict[str, Any]]] = [[] for _ in range(case.ranks)]
        self.iterations = [0] * case.ranks
        for number in range(case.ranks):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if not pid:
                for other in [*self.sockets, ours]:
                    other.close()
                child(case, number, dist, folder, theirs)
            theirs.close()
            ours.setblocking(False)
            self.pids.append(pid)
            self.sockets.append(ours)

    def listen(self) -> None:
        """Reads the messages of the processes."""
        for rank, one in enumerate(self.sockets):
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                while text := one.recv(65536).decode():
                    *lines, self.rest[rank] = (self.rest[rank] + text).split("\n")
                    for line in lines:
                        found = json.loads(line)
                        self.iterations[rank] = found.get("iteration", self.iterations[rank])
                        if "iteration" not in found:
                            self.said[rank].append(found)

    def wait(self, what: str, limit_s: float, is_there: Any) -> None:
        until = time.time() + limit_s
        while True:
            self.listen()
            if is_there():
                return
            if time.time() > until:
                raise Failed(f"{what} has not happened within {limit_s} s: iterations {self.iterations}, {self.errors()[:2]}")
            time.sleep(0.02)

    def tell(self, rank: int, what: Any) -> None:
        self.sockets[rank].setblocking(True)
        self.sockets[rank].sendall((json.dumps(what) + "\n").encode())
        self.sockets[rank].setblocking(False)

    def first(self, name: str) -> list[Any]:
        """The first message of each process with this name."""
        return [next((one[name] for one in said if name in one), None) for said in self.said]

    def errors(self) -> list[tuple[int, dict[str, Any]]]:
        return [(rank, one) for rank, said in enumerate(self.said) for one in said if "error" in one]

    def softrnic(self, *arguments: str) -> None:
        command = [str(self.dist / "bin/softrnic"), "--fabric", os.environ["SOFTRNIC_FABRIC"], *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        if done.returncode:
            raise Failed(f"{' '.join(command)}: {done.stderr}")

    def start(self) -> None:
        self.wait("listening", START_LIMIT_S, lambda: all(self.first("handles")))
        handles = self.first("handles")
        for rank in range(self.case.ranks):
            mine = []
            for at, rings in enumerate(self.case.rings):
                nexts = [ring[(ring.index(rank) + 1) % len(ring)] for ring in rings]
                mine.append([handles[to][at][channel] for channel, to in enumerate(nexts)])
            self.tell(rank, mine)
        self.wait("the first operations", START_LIMIT_S, lambda: min(self.iterations) >= 3)
        time.sleep(self.case.wait_s)

    def inject(self) -> float:
        """When it was done."""
        case = self.case
        if case.kind in ("stopped", "killed"):
            os.kill(self.pids[case.victim], signal.SIGSTOP if case.kind == "stopped" else signal.SIGKILL)
        elif case.kind in ("late", "short", "never called", "order"):
            self.tell(case.victim, {"do": case.kind})
            self.wait(case.kind, 30, lambda: self.first("did")[case.victim])
            return float(self.first("at")[case.victim])
        elif case.kind == "idle":
            self.listen()
            last = max(self.iterations) + 40
            for rank in range(case.ranks):
                self.tell(rank, {"do": "idle", "from": last})
            self.wait("the last operation", 60, lambda: all(self.first("did")))
        elif case.kind == "card":
            self.softrnic("fail", f"softrnic{case.device(case.victim)}")
        elif case.kind in ("one way", "both ways"):
            here, there = (f"softrnic{device}" for device in case.path())
            ways = [(here, there), (there, here)][: 1 if case.kind == "one way" else 2]
            # The packets that one device sends, and its acknowledgements of those that it receives.
            rules = [f"drop attempts=all device={a} peer={b}; drop-ack attempts=all device={b} peer={a}" for a, b in ways]
            self.softrnic("inject", "; ".join(rules))
        return time.time()

    def reports(self) -> list[Report]:
        found = []
        by_pid = {pid: rank for rank, pid in enumerate(self.pids)}
        for path in self.folder.glob("ferrite-hang.*.json"):
            report = json.loads(path.read_text())
            waits = report["waits"]
            cause = waits[0]["cause"] if waits else None
            verdict, ranks, recovery = "none", [], ""
            if cause:
                verdict, recovery = cause["verdict"], cause["recovery"]
                near, far = (by_pid.get(cause[end]["pid"], -1) for end in ("near", "far"))
                if verdict in ("OwnNotTested", "Flush"):
                    ranks = [near]
                elif verdict in PATH_VERDICTS | {"Unreachable", "OrderDiffers"}:
                    ranks = [near, far]
                else:
                    ranks = [far]
            elif report["least_lead"]:
                verdict, ranks = "circle", [by_pid.get(report["least_lead"]["who"]["pid"], -1)]
            reporter, at = by_pid.get(report["pid"], -1), report["time_unix"]
            found.append(Report(reporter, at, verdict, ranks, recovery, report["text"]))
        return sorted(found, key=lambda report: report.at)

    def end(self) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def child(case: Case, number: int, dist: Path, folder: Path, parent: socket.socket) -> None:
    rank = None
    try:
        rank = Rank(case, number, str(dist / "lib/libnccl-net.so"), folder, parent)
        rank.run()
    except (Failed, BrokenPipeError) as why:
        with contextlib.suppress(OSError):
            assert rank
            rank.tell(error=str(why), at=time.time())
            # As a program does that has got an error from NCCL.
            rank.close()
    except BaseException:
        (folder / f"rank{number}.bug").write_text(traceback.format_exc())
    finally:
        os._exit(1)


def run_case(case: Case, dist: Path, folder: Path) -> Result:
    """In a process of its own, whose environment is that of the case."""
    result = Result(case)
    job = Job(case, dist, folder)
    try:
        job.start()
        result.injected = job.inject()
        due = result.injected + (0 if case.kind == "killed" else case.threshold_s)
        watch(job, result, due)
        ask(result, dist)
        job.listen()
        judge(job, result, due)
    except (Failed, OSError, subprocess.SubprocessError) as why:
        result.trouble = f"{type(why).__name__}: {why}"
    finally:
        job.end()
    bugs = [path.read_text() for path in folder.glob("*.bug")]
    result.trouble = result.trouble or "".join(bugs[:1])
    return result


def watch(job: Job, result: Result, due: float) -> None:
    """Waits for reports: from the first one on some time for those of others."""
    until = due + (SEARCH_S if result.is_positive() else 2.5)
    while time.time() < until:
        job.listen()
        result.reports = job.reports()
        if result.is_positive() and (result.reports or (result.case.kind == "killed" and job.errors())):
            until = min(until, time.time() + 1.5)
            while time.time() < until:
                job.listen()
                time.sleep(0.05)
            break
        time.sleep(0.05)
    result.reports = job.reports()


def ask(result: Result, dist: Path) -> None:
    begun = time.time()
    done = subprocess.run([str(dist / "bin/ferrite"), "hang", "all"], capture_output=True, text=True, timeout=60)
    result.asked, result.asked_code, result.asked_s = done.stdout + done.stderr, done.returncode, time.time() - begun


def judge(job: Job, result: Result, due: float) -> None:
    case, kind = result.case, KINDS[result.case.kind][0]
    errors = job.errors()
    if case.kind == "killed":
        result.found = bool(errors or result.reports)
        named = [pid for rank, _ in errors for pid in [named_in_log(job, rank)] if pid]
        result.located = is_most(pid == job.pids[case.victim] for pid in named)
        result.located_by_asking = result.located
        if errors:
            result.after_s = min(one["at"] for _, one in errors) - due
        return
    result.found = bool(result.reports)
    if result.reports:
        result.after_s = result.reports[0].at - due
    if kind == NOTHING:
        result.found |= result.asked_code != 0 or bool(errors)
        return
    if errors:
        result.trouble = f"{len(errors)} processes have got an error: {log_of(job, errors[0][0])[-1:]}"
    result.located = is_most(is_right(case, report) for report in result.reports)
    first = result.asked.split("\n", 1)[0]
    if not first.startswith("cause 1"):
        first = ""
    pids = [int(number) for pair in re.findall(r"\(pid (\d+)|process (\d+) on", first) for number in pair if number]
    ranks = [job.pids.index(pid) for pid in pids if pid in job.pids]
    if kind == PROCESS and case.kind != "order":
        result.located_by_asking = ranks[-1:] == [case.victim]
    elif case.kind == "order":
        result.located_by_asking = case.victim in ranks[:2] and "order" in first
    else:
        result.located_by_asking = frozenset(ranks[:2]) in case.pairs()


def is_right(case: Case, report: Report) -> bool:
    kind = KINDS[case.kind][0]
    if report.verdict not in VERDICTS[case.kind]:
        return False
    if case.kind == "order":
        return case.victim in report.ranks
    if kind == PROCESS:
        return report.ranks == [case.victim]
    if frozenset(report.ranks) not in case.pairs():
        return False
    if report.verdict != "Recovering":
        return kind == PATH
    # The port at the end that has found it, and whose the fault is.
    devices = [case.device(rank) for rank in report.ranks]
    whose = "port up at both ends"
    if kind == CARD:
        lost = [device == case.device(case.victim) for device in devices]
        whose = "neither end can use its port" if all(lost) else f"{'this end' if lost[0] else 'the peer'} cannot use its port"
    return f"(softrnic{devices[0]}): {whose}" in report.recovery


def is_most(right: Any) -> bool:
    counts = Counter(right)
    return counts[True] > counts[False]


def log_of(job: Job, rank: int) -> list[str]:
    lines = (job.folder / f"rank{rank}.log").read_text().splitlines()
    return [line for line in lines if line.split(" ", 2)[1:2] == [str(WARN)]]


def named_in_log(job: Job, rank: int) -> int | None:
    """The process that has died, if the first error of a connection in this log names one: those further away may be told to look at
    the log of another."""
    for line in log_of(job, rank):
        before, died, _ = line.partition("'s process has died")
        if died and (pids := re.findall(r"(?:process |\(pid )(\d+)", before)):
            return int(pids[-1])
    return None


# -- all cases --


def environment(case: Case, dist: Path, folder: Path, name: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FERRITE_", "SOFTRNIC_", "NCCL_"))}
    return kept | {
        "LD_LIBRARY_PATH": str(dist / "softrnic"),
        "SOFTRNIC_FABRIC": name,
        "SOFTRNIC_DEVICES": str(case.devices),
        "SOFTRNIC_QUIET": "1",
        "FERRITE_HANG_SECONDS": str(case.threshold_s),
        "FERRITE_REPORT_DIR": str(folder),
        "FERRITE_STATS_DIR": str(folder),
        # Messages of a second each are too long for a log of hundreds of processes.
        "NCCL_DEBUG": "WARN",
        "NCCL_SOCKET_IFNAME": "lo",
    }


def run_apart(case: Case, chosen: argparse.Namespace) -> Result:
    folder = Path(tempfile.mkdtemp(prefix=f"hang{case.number}."))
    command = [sys.executable, str(Path(__file__).resolve()), "--dist", str(chosen.dist), "--inside", str(folder)]
    name = f"hang-{os.getpid()}-{case.number}"
    result = Result(case, trouble="it has not ended")
    try:
        env = environment(case, chosen.dist, folder, name)
        done = subprocess.run(command, input=json.dumps(asdict(case)), env=env, capture_output=True, text=True, timeout=150)
        if done.stdout:
            found = json.loads(done.stdout)
            found["case"], found["reports"] = case, [Report(**one) for one in found["reports"]]
            result = Result(**found)
        else:
            result.trouble = done.stderr
    except subprocess.TimeoutExpired:
        pass
    with contextlib.suppress(OSError):
        (Path("/dev/shm") / name).unlink(missing_ok=True)
    if chosen.keep or (is_bad(result) and chosen.out):
        kept = chosen.out / f"case{case.number}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("*.sock*"))
    shutil.rmtree(folder, ignore_errors=True)
    return result


def is_bad(result: Result) -> bool:
    if not result.is_positive():
        return result.found or bool(result.trouble)
    return not (result.found and result.located and result.located_by_asking) or bool(result.trouble)


def share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({100 * part / whole:.1f} %)" if whole else "")


def figures(results: list[Result]) -> dict[str, Any]:
    tried = [one for one in results if not one.trouble]
    positive = [one for one in tried if one.is_positive()]
    alarms = [one for one in tried if one.found]
    found = [one for one in positive if one.found]
    times = sorted(one.after_s for one in found if one.after_s is not None)
    waits = sorted(one.after_s for one in found if one.after_s is not None and one.case.kind != "killed")
    return {
        "tried": len(tried),
        "alarms": len(alarms),
        "positive": len(positive),
        "found": len(found),
        "located": sum(one.located for one in found),
        "asked": sum(one.located_by_asking for one in found),
        "times": times,
        "waits": waits,
    }


def table(results: list[Result], chosen: argparse.Namespace, seconds: float) -> tuple[str, bool]:
    all_of = figures(results)
    waits = all_of["waits"]
    within = sum(after <= AIMS["after"] for after in waits)
    latest = max(waits, default=0.0)
    ratios = {
        "precision": (all_of["found"], all_of["alarms"]),
        "recall": (all_of["found"], all_of["positive"]),
        "located": (all_of["located"], all_of["found"]),
    }
    is_met = {name: part >= AIMS[name] * whole for name, (part, whole) in ratios.items()}
    is_met["after"] = within == len(waits)
    troubles = [one for one in results if one.trouble]
    rows = [
        f"| {name} | {share(*ratios[name])} | at least {AIMS[name] * 100:.0f} % | {'yes' if is_met[name] else '**no**'} |"
        for name in ratios
    ]
    rows.append(f"| located by `ferrite hang all` | {share(all_of['asked'], all_of['found'])} | | |")
    rows.append(
        f"| reported within {AIMS['after']:.0f} s after the threshold | {share(within, len(waits))}; longest {latest:.1f} s "
        f"| all | {'yes' if is_met['after'] else '**no**'} |"
    )
    lines = [
        "# Random faults, and what the hang report says of them",
        "",
        f"{len(results)} cases of seed {chosen.seed}, each with {chosen.least} to {chosen.most} processes over the software device. "
        f"`FERRITE_HANG_SECONDS={chosen.threshold}`.",
        "",
        "| | found | aim | met |",
        "|---|---|---|---|",
        *rows,
        "",
        "| what was done | cases | reported | located | by `ferrite hang all` | seconds after the threshold: median, longest |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        of = figures([one for one in results if one.case.kind == kind])
        if not of["tried"]:
            continue
        times = f"{statistics.median(of['times']):.1f}, {of['times'][-1]:.1f}" if of["times"] else "-"
        of_located = ["-", "-"] if KINDS[kind][0] == NOTHING else [str(of["located"]), str(of["asked"])]
        lines.append(f"| {kind} | {of['tried']} | {of['alarms']} | {of_located[0]} | {of_located[1]} | {times} |")
    bad = [one for one in results if is_bad(one)]
    if bad:
        lines += ["", "Not as it should be:", ""]
        lines += [f"- case {one.case.number}, {one.case.kind}: {summary(one)}" for one in bad]
    lines += [
        "",
        "Of a killed process the time counts from its death: it ends connections with an error, and nobody waits for it, so that it is not "
        "in the last row of the first table. "
        f"{len(troubles)} case(s) could not be tried and do not count.",
        "",
        f"`{' '.join(['scripts/hang_injections.py', *sys.argv[1:]])}`, {seconds:.0f} s on {os.cpu_count()} processors, "
        f"{time.strftime('%Y-%m-%d')}",
    ]
    return "\n".join(lines) + "\n", all(is_met.values()) and not troubles


def summary(result: Result) -> str:
    case = result.case
    if result.trouble:
        return "trouble: " + result.trouble.strip().replace("\n", " ")[-300:]
    named = Counter(f"{report.verdict} {report.ranks}" for report in result.reports)
    said = ", ".join(f"{count} x {what}" for what, count in named.most_common(4)) or "no report"
    where = {PROCESS: f"rank {case.victim}", PATH: f"devices {case.path()}", CARD: f"device {case.device(case.victim)}", NOTHING: ""}
    asked = result.asked.split("\n", 1)[0][:240]
    return f"{where[KINDS[case.kind][0]]} of {case.ranks}; {said}; ferrite hang all ({result.asked_code}): {asked}"


def inside(folder: Path, dist: Path) -> int:
    case = Case(**json.load(sys.stdin))
    result = run_case(case, dist, folder)
    print(json.dumps(asdict(result)))
    return 0


def number(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of bin/ferrite, lib/libnccl-net.so and softrnic/")
    parser.add_argument("--cases", type=number, default=20, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parallel", type=number, default=1, metavar="N", help="cases at a time")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="KIND,KIND", help="only these")
    parser.add_argument("--least", type=int, choices=SIZES, default=8, help="fewest processes of a case")
    parser.add_argument("--most", type=int, choices=SIZES, default=64, help="most processes of a case")
    parser.add_argument("--threshold", type=number, default=4, metavar="S", help="FERRITE_HANG_SECONDS")
    parser.add_argument("--out", type=Path, default=Path("report-injections"), help="folder for report.md, results.json, bad cases' logs")
    parser.add_argument("--case", type=int, metavar="N", help="only this one")
    parser.add_argument("--keep", action="store_true", help="keep the logs of all cases")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.dist = chosen.dist.resolve()
    if chosen.inside:
        return inside(chosen.inside, chosen.dist)
    for name in ("bin/ferrite", "bin/softrnic", "lib/libnccl-net.so", "softrnic/libibverbs.so.1"):
        if not (chosen.dist / name).exists():
            print(f"hang_injections.py: {chosen.dist / name} is missing (--dist; scripts/build.sh makes it)", file=sys.stderr)
            return 2
    kinds = chosen.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        print(f"hang_injections.py: --kinds {unknown[0]}: must be one of {', '.join(KINDS)}", file=sys.stderr)
        return 2
    numbers = [chosen.case] if chosen.case is not None else range(chosen.cases)
    sizes = [count for count in SIZES if chosen.least <= count <= chosen.most]
    if not sizes:
        print(f"hang_injections.py: --least {chosen.least} is more than --most {chosen.most}", file=sys.stderr)
        return 2
    cases = [case_of(chosen.seed, at, chosen.threshold, kinds, sizes) for at in numbers]
    chosen.out.mkdir(parents=True, exist_ok=True)
    begun, results = time.time(), []
    with ThreadPoolExecutor(chosen.parallel) as pool:
        for result in pool.map(lambda case: run_apart(case, chosen), cases):
            results.append(result)
            case, after = result.case, "" if result.after_s is None else f", {result.after_s:+.1f} s"
            said = "BAD " + summary(result) if is_bad(result) else "right"
            print(f"case {case.number} {case.kind} of {case.ranks}: {said}{after}", flush=True)
    text, is_good = table(results, chosen, time.time() - begun)
    (chosen.out / "report.md").write_text(text)
    (chosen.out / "results.json").write_text(json.dumps([asdict(one) for one in results]))
    print(text)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
