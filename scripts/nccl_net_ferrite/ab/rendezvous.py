"""All ranks of a run exchange values, over TCP by way of rank 0. Nothing of it is timed."""

import json
import socket
import struct
import time
from typing import Any

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
