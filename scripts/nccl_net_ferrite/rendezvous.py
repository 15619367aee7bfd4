"""Values that the ranks of a run exchange, over TCP by way of rank 0. Nothing of it is timed."""

import json
import socket
import struct
import time
from typing import Any

LENGTH = struct.Struct("!I")
# What a rank says first: its number, at once.
HELLO_BYTES, HELLO_SECONDS = 16, 5


class Rendezvous:
    """Of one rank; `host` and `port` are rank 0's. Raises OSError if another rank does not connect within `wait` seconds, says nothing
    for `limit` seconds, or closes its connection."""

    def __init__(self, rank: int, world: int, host: str, port: int, limit: float, wait: float = 0.0):
        self.rank, self.world, self.limit = rank, world, limit
        wait = wait or limit
        self.others = self.listen(host, port, wait) if rank == 0 else [self.connect(host, port, wait)]

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

    def listen(self, host: str, port: int, wait: float) -> list[socket.socket]:
        """On rank 0: connections to the other ranks, in their order."""
        found: dict[int, socket.socket] = {}
        deadline = time.monotonic() + wait
        # Where all ranks are on one machine it listens there only.
        with socket.create_server((host if host == "127.0.0.1" else "", port)) as server:
            while len(found) < self.world - 1:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    other, _ = server.accept()
                except TimeoutError as error:
                    raise TimeoutError(f"{len(found) + 1} of {self.world} ranks have come to port {port} within {wait:.0f} s") from error
                # A port scanner may come too, or a health check.
                other.settimeout(HELLO_SECONDS)
                rank = hello_of(other)
                if rank not in range(1, self.world) or rank in found:
                    other.close()
                    continue
                self.prepare(other)
                found[rank] = other
        return [found[rank] for rank in sorted(found)]

    def connect(self, host: str, port: int, wait: float) -> socket.socket:
        """On any other rank: the connection to rank 0."""
        deadline = time.monotonic() + wait
        while True:
            try:
                other = socket.create_connection((host, port), timeout=max(0.01, deadline - time.monotonic()))
                break
            except OSError as error:
                # Rank 0 may not be there yet.
                if time.monotonic() > deadline:
                    raise TimeoutError(f"rank 0 does not answer at {host}, port {port}, within {wait:.0f} s: {error}") from error
                time.sleep(0.02)
        self.prepare(other)
        send(other, self.rank)
        return other

    def prepare(self, other: socket.socket) -> None:
        other.settimeout(self.limit)
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def hello_of(other: socket.socket) -> int:
    """The rank that has connected; 0 if it is none."""
    try:
        rank = receive(other, HELLO_BYTES)
    except (OSError, ValueError):
        return 0
    return rank if type(rank) is int else 0


def send(other: socket.socket, value: Any) -> None:
    text = json.dumps(value).encode()
    other.sendall(LENGTH.pack(len(text)) + text)


def receive(other: socket.socket, most: int = 1 << 30) -> Any:
    [length] = LENGTH.unpack(receive_bytes(other, LENGTH.size))
    if length > most:
        raise ValueError(f"{length} bytes; at most {most} are allowed")
    return json.loads(receive_bytes(other, length))


def receive_bytes(other: socket.socket, length: int) -> bytes:
    got = b""
    while len(got) < length:
        more = other.recv(length - len(got))
        if not more:
            raise ConnectionError("a rank has gone")
        got += more
    return got
