"""One rank of one run, without PyTorch: as torch_rank.py, but it calls NCCL's library itself. AB_TASK says what to do."""

import json
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import ab, evidence, options
from .nccl import ELEMENT, Communicator, Cuda, DeviceData, Library, Operations

# -- all ranks of a run exchange values, over TCP by way of rank 0. Nothing of it is timed --

LENGTH = struct.Struct("!I")


class Rendezvous:
    """Of one rank; `host` and `port` are rank 0's. Raises OSError if another rank does not connect within `limit` seconds, or closes its
    connection."""

    def __init__(self, rank: int, world: int, host: str, port: int, limit: float):
        self.rank, self.world = rank, world
        self.others = listen(world, host, port, limit) if rank == 0 else [connect(rank, host, port, limit)]

    def close(self) -> None:
        for other in self.others:
            other.close()

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order. A value is anything that JSON can have."""
        if self.rank:
            send(self.others[0], value)
            return list(receive(self.others[0]))
        values = [value, *map(receive, self.others)]
        for other in self.others:
            send(other, values)
        return values


def listen(world: int, host: str, port: int, limit: float) -> list[socket.socket]:
    """On rank 0: connections to the other ranks, in their order."""
    found: dict[int, socket.socket] = {}
    # Where all ranks are on one machine it listens there only.
    with socket.create_server((host if host == "127.0.0.1" else "", port)) as server:
        server.settimeout(limit)
        while len(found) < world - 1:
            other, _ = server.accept()
            prepare(other, limit)
            found[receive(other)] = other
    return [found[rank] for rank in sorted(found)]


def connect(rank: int, host: str, port: int, limit: float) -> socket.socket:
    """On any other rank: the connection to rank 0."""
    deadline = time.monotonic() + limit
    while True:
        try:
            other = socket.create_connection((host, port), timeout=limit)
            break
        except OSError:
            # Rank 0 may not be there yet.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    prepare(other, limit)
    send(other, rank)
    return other


def prepare(other: socket.socket, limit: float) -> None:
    other.settimeout(limit)
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def send(other: socket.socket, value: Any) -> None:
    text = json.dumps(value).encode()
    other.sendall(LENGTH.pack(len(text)) + text)


def receive(other: socket.socket) -> Any:
    [length] = LENGTH.unpack(receive_bytes(other, LENGTH.size))
    return json.loads(receive_bytes(other, length))


def receive_bytes(other: socket.socket, length: int) -> bytes:
    got = b""
    while len(got) < length:
        more = other.recv(length - len(got))
        if not more:
            raise ConnectionError("a rank has gone")
        got += more
    return got


class Clock:
    """Times calls on the device's own clock, as the slowest rank sees them."""

    def __init__(self, comm: Communicator, rendezvous: Rendezvous):
        self.comm, self.cuda, self.rendezvous = comm, comm.cuda, rendezvous
        self.begin, self.end = self.cuda.event(), self.cuda.event()
        self.flag = self.cuda.allocate(ELEMENT)

    def batch(self, call: Callable[[], None], calls: int) -> float:
        """Time of a call in microseconds."""
        self.rendezvous.gather(None)
        # The device of no rank begins before all have begun.
        self.comm.all_reduce(self.flag, self.flag, 1)
        self.cuda.record(self.begin)
        for _ in range(calls):
            call()
        self.cuda.record(self.end)
        self.comm.wait()
        return max(map(float, self.rendezvous.gather(self.cuda.elapsed_us(self.begin, self.end) / calls)))

    def measure(self, call: Callable[[], None]) -> float:
        """Median over batches, after one that warms up and one that tells how many calls a batch may have."""
        self.batch(call, 3)
        calls = ab.calls_in_batch(self.batch(call, 3))
        times = [self.batch(call, calls) for _ in range(ab.BATCHES)]
        return sorted(times)[ab.BATCHES // 2]


def row_of(operations: Operations, clock: Clock, name: str, size: int) -> dict[str, Any]:
    """Its values are checked before it is timed, and after."""
    errors = [operations.error(name, size, name == "all_reduce")]
    call, moved = operations.timed(name, size)
    time = clock.measure(call)
    errors.append(operations.error(name, size, name == "all_reduce"))
    errors_of_ranks = clock.rendezvous.gather([error for error in errors if error])
    for rank, found in enumerate(errors_of_ranks):
        for error in found:
            print(f"Error: rank {rank}, {name} of {options.size_text(size)}: {error}", flush=True)
    return {"collective": name, "size": size, "bytes": moved, "us": time, "wrong": sum(map(len, errors_of_ranks))}


def main() -> None:
    task = json.loads(os.environ["AB_TASK"])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda, library = Cuda(task["libcuda"], int(os.environ["LOCAL_RANK"])), Library(task["libnccl"])
    rendezvous = Rendezvous(rank, world, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), task["limit"])
    unique_id = bytes.fromhex(rendezvous.gather(library.unique_id().hex() if rank == 0 else None)[0])
    most = max(*task["sizes"], ELEMENT * world)
    data = DeviceData(cuda, most)
    a, b = cuda.allocate(most), cuda.allocate(most)
    comm = Communicator(library, cuda, unique_id, rank, world)
    operations, clock = Operations(comm, data, a, b), Clock(comm, rendezvous)
    rows = [row_of(operations, clock, name, size) for name in task["collectives"] for size in task["sizes"]]
    found = rendezvous.gather(asdict(evidence.of_file(Path(os.environ["NCCL_DEBUG_FILE"]))))
    gpus = rendezvous.gather(f"{os.uname().nodename}: {cuda.name}")
    if rank == 0:
        result = {"rows": rows, "evidence": found, "gpus": gpus, "versions": {"nccl": library.version()}}
        Path(task["result"]).write_text(json.dumps(result))
    comm.destroy()
    rendezvous.close()


if __name__ == "__main__":
    main()
