"""What the programs of this folder share: two processes that exchange messages, and bytes that show what was lost or moved."""

import ctypes
import json
import multiprocessing
import multiprocessing.connection
import random
import subprocess
import sys
from collections.abc import Callable

Peer = multiprocessing.connection.Connection
#: How long one end waits for the other, in seconds.
PATIENCE = 60


class Buffer:
    """Memory of one end: `size` bytes at `address`, all zero at first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = ctypes.create_string_buffer(size)
        self.address = ctypes.addressof(self._memory)

    def write(self, content: bytes) -> None:
        ctypes.memmove(self.address, content, len(content))

    def read(self) -> bytes:
        return self._memory.raw


def content(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def compare(what: str, found: bytes, expected: bytes) -> None:
    """Ends the process if a byte differs."""
    wrong = [at for at, (one, other) in enumerate(zip(found, expected)) if one != other]
    if wrong or len(found) != len(expected):
        sys.exit(f"{what}: {len(wrong)} of {len(expected)} bytes are wrong, the first at {wrong[:1]}; {len(found)} bytes found")
    print(f"{what}: {len(expected)} bytes right", flush=True)


def receive(peer: Peer) -> object:
    if not peer.poll(PATIENCE):
        sys.exit(f"the other end has said nothing for {PATIENCE} s")
    try:
        return peer.recv()
    except EOFError:
        sys.exit("the other end has ended")


def check_traffic(at_least: int) -> None:
    """Ends the process if fewer bytes have passed the ports of softrnic so far."""
    said = subprocess.run(["softrnic", "stat", "--json"], capture_output=True, text=True).stdout
    passed = said and sum(port["counters"]["bytes"] for device in json.loads(said)["devices"] for port in device["ports"])
    if not passed or passed < at_least:
        sys.exit(f"{passed or 0} bytes have passed the ports of softrnic, not {at_least}: the rest took another way")
    print(f"ports of softrnic: {passed} bytes", flush=True)


def run(first: Callable[[Peer], None], second: Callable[[Peer], None]) -> None:
    """Runs both ends, each in a process of its own. Exits with 1 if one of them fails."""
    context = multiprocessing.get_context("spawn")
    ends = context.Pipe()
    processes = [context.Process(target=end, args=(pipe,)) for end, pipe in zip((first, second), ends)]
    for process in processes:
        process.start()
    for pipe in ends:
        pipe.close()
    for process in processes:
        process.join(4 * PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()
    sys.exit(0 if all(process.exitcode == 0 for process in processes) else 1)
