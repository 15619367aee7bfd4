#!/usr/bin/env python3
"""Sets up a connection of this process with itself, sends a message, and closes all of it, again and again.

    reinit.py PLUGIN SECONDS

    dist/bin/softrnic run -- scripts/reinit.py dist/lib/libnccl-net.so 60

Each round calls the plugin's init, listen, connect, accept, regMr, irecv, isend, test, deregMr and the three closes, by version 8 of
NCCL's interface, and compares the message's bytes. Every second it prints how many rounds there have been.
The exit status is 1 if a call fails or a byte is wrong.
"""

import argparse
import ctypes
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

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
]
SLOTS += ["closeSend", "closeRecv", "closeListen", "getDeviceMr", "irecvConsumed"]
HOST = 1
BYTES = 65536
# Much longer than any step takes, on a busy machine too.
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


def main() -> int:
    parser = argparse.ArgumentParser(description="Sets up a connection of this process with itself and closes it, again and again.")
    parser.add_argument("plugin", help="the library")
    parser.add_argument("seconds", type=float, help="how long")
    arguments = parser.parse_args()
    plugin, rounds = Plugin(arguments.plugin), 0
    end, told = time.monotonic() + arguments.seconds, 0.0
    while (now := time.monotonic()) < end:
        plugin.round(rounds)
        rounds += 1
        if now - told >= 1:
            told = now
            print(rounds, flush=True)
        # It is not about how many.
        time.sleep(0.02)
    print(rounds, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
