#!/usr/bin/env python3
"""Has ports fall, processes stop and die, and connections be made anew for a time, and tells what is held at its beginning and its end.

    endurance.py MINUTES

    scripts/endurance.py 60

At the same time, each with checked messages:
  * one stream, of whose sender the only port is down for 20 ms in every second, and whose receiver is stopped for 50 ms every ten seconds
  * a process that sets up a connection with itself and closes all of it, some tens of times a second (with --anew that alone)
  * streams of which one end is killed, one after the other
It uses dist/, which scripts/build.sh makes. What the processes hold at the beginning is looked at when all that is kept has been
allocated: after 90 s, or a quarter of the time. The exit status is 1 if a message is missing or wrong, if a process that lives on holds
more files or threads at the end than at the beginning, or an eighth more memory, or if shared memory holds more than the statistics of
the latest 64 processes that were killed.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

FERRITE = [f"{ROOT}/dist/bin/ferrite", "outlast", "--plugin", f"{ROOT}/dist/lib/libnccl-net.so"]
DOWN, STOPPED = 20, 50
SETTLED_S = 90
ENDING_S = 180
# Of processes that were killed (src/stats/dead.rs): 64 are left when a process begins, and those come that are killed afterwards.
MOST_STATISTICS = 66


def below(pid: int) -> list[int]:
    """The processes that `pid` has begun, and those that they have."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            begun = [int(child) for child in children.read_text().split()]
        except OSError:
            # The thread has ended.
            continue
        for child in begun:
            found += [child, *below(child)]
    return found


def held(pid: int) -> dict[str, int]:
    """What a process holds."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "KiB": int(status["VmRSS"].split()[0]),
        "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": int(status["Threads"]),
    }


def is_kept(first: dict[str, int], last: dict[str, int]) -> bool:
    return last["files"] <= first["files"] and last["threads"] <= first["threads"] and last["KiB"] * 8 <= first["KiB"] * 9


def falls(seconds: int) -> list[str]:
    """The stream whose port falls."""
    faults = []
    for second in range(1, seconds):
        at = second * 1000
        faults += [("port softrnic0/1 down", at), ("port softrnic0/1 up", at + DOWN)]
        if second % 10 == 0:
            faults += [("stop receiver", at + 500), ("continue receiver", at + 500 + STOPPED)]
    words = [word for fault, at in faults for word in ("--fault", fault, "--at", f"{at}ms")]
    return [*FERRITE, "--finish", "--format", "json", "--limit", "60", "--lasting", f"{seconds}s", *words]


def lives_on(pid: int) -> bool:
    """Whether it is a process that sends or receives."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"outlast-worker" in command or b"--anew" in command


class Looked:
    """What the processes that live on hold, by name: at the beginning, at the end, and the most of each."""

    def __init__(self) -> None:
        self.looks: dict[str, list[dict[str, int]]] = {}

    def look(self, runs: dict[str, int]) -> None:
        for name, run in runs.items():
            # What else these begin, the software device's program for each fault, ends at once.
            for number, pid in enumerate(filter(lives_on, sorted([run, *below(run)]))):
                try:
                    self.looks.setdefault(f"{name}, process {number}", []).append(held(pid))
                except (OSError, KeyError):
                    # It has ended.
                    continue

    def are_kept(self) -> bool:
        """Prints them."""
        for name, looks in self.looks.items():
            most = {what: max(look[what] for look in looks) for what in looks[0]}
            print(f"{name}: {looks[0]} at the beginning, {looks[-1]} at the end, at most {most}")
        return len(self.looks) == 3 and all(is_kept(looks[0], looks[-1]) for looks in self.looks.values())


def killed(environment: dict[str, str], number: int) -> bool:
    """Whether the end that lives on is told of a kill."""
    end = ("sender", "receiver")[number % 2]
    words = ["--fault", f"kill {end}", "--at", f"{300 + 37 * number % 500}ms", "--lasting", "10s", "--limit", "60", "--format", "json"]
    done = subprocess.run([*FERRITE, *words], env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return False
    ends = {one["how"] for one in json.loads(done.stdout.strip().splitlines()[-1])["ends"]}
    return ends == {"killed", "error"}


def told_in_time(run: subprocess.Popen[str], seconds: float) -> str:
    """What `run` has printed, if it ends within so many seconds and those that an end may take; what goes on after that is ended."""
    try:
        return run.communicate(timeout=seconds + ENDING_S)[0].strip()
    except subprocess.TimeoutExpired:
        run.terminate()
        run.communicate()
        return ""


SLOTS = [
    "name",
    "init",
    "devices",
    "getProperties",
    "listen",
    "connect",
    "accept",
    "regMr",
    "regMrDmaBuf",
    "deregMr",
    "isend",
    "irecv",
    "iflush",
    "test",
    "closeSend",
    "closeRecv",
    "closeListen",
    "getDeviceMr",
    "irecvConsumed",
]
HOST = 1
BYTES = 65536
# Much longer than any step of a round takes, on a busy machine too.
LIMIT_S = 120
Logger = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)


class Vtable(ctypes.Structure):
    _fields_ = [(slot, ctypes.c_void_p) for slot in SLOTS]


class Plugin:
    """The calls of one plugin."""

    def __init__(self, library: str) -> None:
        self.net = Vtable.in_dll(ctypes.CDLL(library), "ncclNetPlugin_v8")
        self.logger = Logger(lambda *_: None)

    def call(self, slot: str, *arguments: Any) -> None:
        code = ctypes.CFUNCTYPE(ctypes.c_int, *(type(one) for one in arguments))(getattr(self.net, slot))(*arguments)
        if code:
            sys.exit(f"{slot} returned {code}")

    def finish(self, request: ctypes.c_void_p) -> bool:
        done, sizes = ctypes.c_int(), (ctypes.c_int * 8)()
        self.call("test", request, at(done), at(sizes))
        return bool(done.value)

    def call_until(self, number: int, what: str, done: Callable[[], bool]) -> None:
        """Calls of one step of a round, again and again, for LIMIT_S at most."""
        end = time.monotonic() + LIMIT_S
        while not done():
            if time.monotonic() > end:
                sys.exit(f"round {number}: {what} has not come to an end for {LIMIT_S} s")

    def round(self, number: int) -> None:
        """A connection from its set-up to its end."""
        self.call("init", self.logger)
        handle, listener, send, receive, none = ctypes.create_string_buffer(128), *(ctypes.c_void_p() for _ in range(4))
        self.call("listen", ctypes.c_int(0), at(handle), at(listener))

        def is_connected() -> bool:
            if not send.value:
                self.call("connect", ctypes.c_int(0), at(handle), at(send), at(none))
            if not receive.value:
                self.call("accept", listener, at(receive), at(none))
            return bool(send.value and receive.value)

        self.call_until(number, "the set-up", is_connected)
        self.transfer(number, send, receive)
        self.call("closeSend", send)
        self.call("closeRecv", receive)
        self.call("closeListen", listener)

    def transfer(self, number: int, send: ctypes.c_void_p, receive: ctypes.c_void_p) -> None:
        """One message, from memory that is registered to memory that is deregistered."""
        source = ctypes.create_string_buffer(bytes([number % 251]) * BYTES, BYTES)
        target = ctypes.create_string_buffer(BYTES)
        keys = [ctypes.c_void_p(), ctypes.c_void_p()]
        for comm, data, key in ((send, source, keys[0]), (receive, target, keys[1])):
            self.call("regMr", comm, at(data), ctypes.c_size_t(BYTES), ctypes.c_int(HOST), at(key))
        requests = [ctypes.c_void_p(), ctypes.c_void_p()]

        def is_received() -> bool:
            datas, handles = (ctypes.c_void_p * 1)(ctypes.addressof(target)), (ctypes.c_void_p * 1)(keys[1].value)
            sizes, tags = (ctypes.c_int * 1)(BYTES), (ctypes.c_int * 1)(7)
            self.call("irecv", receive, ctypes.c_int(1), at(datas), at(sizes), at(tags), at(handles), at(requests[1]))
            return bool(requests[1].value)

        def is_sent() -> bool:
            self.call("isend", send, at(source), ctypes.c_int(BYTES), ctypes.c_int(7), keys[0], at(requests[0]))
            return bool(requests[0].value)

        self.call_until(number, "irecv", is_received)
        self.call_until(number, "isend", is_sent)
        for request in requests:
            self.call_until(number, "test", partial(self.finish, request))
        if target.raw != source.raw:
            sys.exit(f"round {number}: wrong bytes")
        for comm, key in ((send, keys[0]), (receive, keys[1])):
            self.call("deregMr", comm, key)


def at(value: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(ctypes.addressof(value))


def connect_anew(seconds: float) -> int:
    """Sets up a connection of this process with itself, sends a message and closes all of it, again and again, by version 8 of NCCL's
    interface. Ends the program if a call fails or a byte is wrong."""
    plugin, rounds = Plugin(f"{ROOT}/dist/lib/libnccl-net.so"), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        plugin.round(rounds)
        rounds += 1
        # It is not about how many.
        time.sleep(0.02)
    print(rounds, flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Has ports fall, processes stop and die, and connections be made anew for a time.")
    parser.add_argument("minutes", nargs="?", type=float, default=60, help="how long, 0.5 to 90; default 60")
    parser.add_argument("--anew", type=float, metavar="SECONDS", help="only set up connections anew, in this process")
    chosen = parser.parse_args()
    if chosen.anew is not None:
        return connect_anew(chosen.anew)
    seconds = int(chosen.minutes * 60)
    if not 30 <= seconds <= 90 * 60:
        parser.error("MINUTES: 0.5 to 90 are possible")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="endurance-") as folder:
        environment = os.environ | {"SOFTRNIC_SHM_DIR": folder, "FERRITE_STATS_DIR": folder, "SOFTRNIC_QUIET": "1"}
        begun = time.monotonic()
        stream = subprocess.Popen(falls(seconds), env=environment, stdout=subprocess.PIPE, text=True)
        command = [f"{ROOT}/dist/bin/softrnic", "run", "--", sys.executable, __file__, "--anew", str(seconds)]
        rounds = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        looked, settled, kills, untold = Looked(), min(SETTLED_S, seconds / 4), 0, 0
        # The pipes are read at the end: what is written there is little.
        while (now := time.monotonic() - begun) < seconds - 5 and stream.poll() is None and rounds.poll() is None:
            if now >= settled:
                looked.look({"stream": stream.pid, "connections made anew": rounds.pid})
            untold += not killed(environment, kills)
            kills += 1
        # Where one has ended before its time, the other is not waited for.
        rest = 0 if stream.poll() is not None or rounds.poll() is not None else seconds - now
        told_stream, told_rounds = told_in_time(stream, rest), told_in_time(rounds, rest)
        # A process that is killed leaves its statistics, of which the newest are kept.
        names = [path.name for path in Path(folder).iterdir()]
        left = [name for name in names if not name.startswith("ferrite-stats.")]
        statistics = len(names) - len(left)
    if not told_stream or not told_rounds:
        silent = "the process that connects anew" if told_stream else "the stream"
        print(f"endurance.py: {silent} has ended without a result; it went on for {now:.0f} s of {seconds}", file=sys.stderr)
        return 1
    end_of = json.loads(told_stream.splitlines()[-1])
    received = end_of["received"]
    wrong = received["wrong_on_arrival"] + received["wrong_later"]
    print(
        f"{seconds} s: {seconds - 1} falls, {end_of['recoveries']} recoveries, {received['messages']} messages, wrong bytes {wrong}; ",
        end="",
    )
    print(f"{told_rounds.split()[-1]} connections made anew; {kills} kills, {untold} not reported as they should be; ", end="")
    print(f"left in shared memory: {statistics} files of statistics, {', '.join(left) or 'nothing else'}")
    all_kept = looked.are_kept()
    return 0 if all_kept and not (stream.returncode or rounds.returncode or untold or left or statistics > MOST_STATISTICS) else 1


if __name__ == "__main__":
    sys.exit(main())
