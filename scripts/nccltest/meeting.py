"""All ranks of a run at one table: each says a value, and hears everybody's. Over TCP by way of rank 0; nothing of it is timed."""

import json
import socket
import struct
import time

LENGTH = struct.Struct("!I")


class Meeting:
    """`host` and `port` are rank 0's. Raises OSError if the others do not come within `limit` seconds, or go."""

    def __init__(self, rank: int, world: int, host: str, port: int, limit: float):
        self.rank, self.world = rank, world
        self.others = listen(world, host, port, limit) if rank == 0 else [connect(rank, host, port, limit)]

    def close(self) -> None:
        for other in self.others:
            other.close()

    def gather(self, value) -> list:
        """What all ranks said, in their order. Values are whatever JSON can say."""
        if self.rank:
            say(self.others[0], value)
            return hear(self.others[0])
        said = [value, *map(hear, self.others)]
        for other in self.others:
            say(other, said)
        return said


def listen(world: int, host: str, port: int, limit: float) -> list[socket.socket]:
    """The other ranks, in their order."""
    found = {}
    # Where all are on one machine nobody else need reach it.
    with socket.create_server((host if host == "127.0.0.1" else "", port)) as server:
        server.settimeout(limit)
        while len(found) < world - 1:
            other, _ = server.accept()
            ready(other, limit)
            found[hear(other)] = other
    return [found[rank] for rank in sorted(found)]


def connect(rank: int, host: str, port: int, limit: float) -> socket.socket:
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
    ready(other, limit)
    say(other, rank)
    return other


def ready(other: socket.socket, limit: float) -> None:
    other.settimeout(limit)
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def say(other: socket.socket, value) -> None:
    text = json.dumps(value).encode()
    other.sendall(LENGTH.pack(len(text)) + text)


def hear(other: socket.socket):
    [length] = LENGTH.unpack(exactly(other, LENGTH.size))
    return json.loads(exactly(other, length))


def exactly(other: socket.socket, length: int) -> bytes:
    got = b""
    while len(got) < length:
        more = other.recv(length - len(got))
        if not more:
            raise ConnectionError("a rank has gone")
        got += more
    return got
