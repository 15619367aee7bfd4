"""Calls a plugin as NCCL does, for tests of the layer that counts: argument 1 is the library."""

import ctypes
import sys
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


class Vtable(ctypes.Structure):
    _fields_ = [(slot, ctypes.c_void_p) for slot in SLOTS]


HOST, CUDA = 1, 2
net = Vtable.in_dll(ctypes.CDLL(sys.argv[1]), "ncclNetPlugin_v8")
if not net.name:
    sys.exit("no plugin")


def call(slot: str, *arguments: Any) -> None:
    if ctypes.CFUNCTYPE(ctypes.c_int, *(type(one) for one in arguments))(getattr(net, slot))(*arguments):
        sys.exit(slot)


def finish(request: ctypes.c_void_p, is_flush: bool = False) -> None:
    done, sizes = ctypes.c_int(), (ctypes.c_int * 8)()
    call("test", request, ctypes.c_void_p(ctypes.addressof(done)), ctypes.c_void_p(None if is_flush else ctypes.addressof(sizes)))


def at(value: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(ctypes.addressof(value))


for size in (50, 100, 101, -1):
    request = ctypes.c_void_p()
    call("isend", ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int(size), ctypes.c_int(0), ctypes.c_void_p(), at(request))
    if request.value:
        finish(request)
request, memory = ctypes.c_void_p(), ctypes.c_void_p()
call("iflush", ctypes.c_void_p(), ctypes.c_int(1), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), at(request))
finish(request, True)
for kind in (HOST, CUDA, CUDA):
    call("regMr", ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(8), ctypes.c_int(kind), at(memory))
call(
    "regMrDmaBuf",
    ctypes.c_void_p(),
    ctypes.c_void_p(),
    ctypes.c_size_t(8),
    ctypes.c_int(CUDA),
    ctypes.c_uint64(0),
    ctypes.c_int(3),
    at(memory),
)
