"""Calls a plugin as NCCL does, for tests of the layer that counts: argument 1 is the library."""

import ctypes
import sys

SLOTS = ["name", "init", "devices", "getProperties", "listen", "connect", "accept", "regMr", "regMrDmaBuf", "deregMr", "isend", "irecv",
         "iflush", "test"]


class Vtable(ctypes.Structure):
    _fields_ = [(slot, ctypes.c_void_p) for slot in SLOTS]


HOST, CUDA = 1, 2
net = Vtable.in_dll(ctypes.CDLL(sys.argv[1]), "ncclNetPlugin_v8")
if not net.name:
    sys.exit("no plugin")
address, whole, pointer = ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p


def call(slot: str, *arguments) -> None:
    if ctypes.CFUNCTYPE(whole, *(type(one) for one in arguments))(getattr(net, slot))(*arguments):
        sys.exit(slot)


def finish(request: pointer, is_flush: bool = False) -> None:
    done, sizes = whole(), (whole * 8)()
    call("test", request, pointer(ctypes.addressof(done)), pointer(None if is_flush else ctypes.addressof(sizes)))


def at(value) -> pointer:
    return pointer(ctypes.addressof(value))


for size in (50, 100, 101, -1):
    request = pointer()
    call("isend", pointer(), pointer(), whole(size), whole(0), pointer(), at(request))
    if request.value:
        finish(request)
request, memory = pointer(), pointer()
call("iflush", pointer(), whole(1), pointer(), pointer(), pointer(), at(request))
finish(request, True)
for kind in (HOST, CUDA, CUDA):
    call("regMr", pointer(), pointer(), ctypes.c_size_t(8), whole(kind), at(memory))
call("regMrDmaBuf", pointer(), pointer(), ctypes.c_size_t(8), whole(CUDA), ctypes.c_uint64(0), whole(3), at(memory))
