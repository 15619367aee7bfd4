"""Calls a plugin as NCCL does, for tests of the layer that counts: argument 1 is the library."""

import ctypes
import sys

from endurance import HOST, Plugin, at

CUDA = 2
plugin = Plugin(sys.argv[1])
if not plugin.net.name:
    sys.exit("no plugin")
call = plugin.call


def finish(request: ctypes.c_void_p, is_flush: bool = False) -> None:
    done, sizes = ctypes.c_int(), (ctypes.c_int * 8)()
    call("test", request, ctypes.c_void_p(ctypes.addressof(done)), ctypes.c_void_p(None if is_flush else ctypes.addressof(sizes)))


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
