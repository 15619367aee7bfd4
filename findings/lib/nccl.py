"""Loads libnccl.so.2 and calls functions that it does not export, by the symbol table that its releases keep."""

import ctypes
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from typing import Any


class Nccl:
    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.library.ncclGetLastError.restype = ctypes.c_char_p
        with open(path, "rb") as file:
            content = file.read()
        self._symbols = dict(_symbols(content))
        exported = ctypes.cast(self.library.ncclGetVersion, ctypes.c_void_p).value or 0
        self._base = exported - self._symbols["ncclGetVersion"]

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        """The C++ function `name`, whatever its parameters are called in the symbol; parts split off by the compiler do not count."""
        symbols = [symbol for symbol in self._symbols if "." not in symbol]
        for begin in (f"_Z{len(name)}{name}", f"_ZL{len(name)}{name}"):  # of the library, of one file
            found = [symbol for symbol in symbols if symbol.startswith(begin)]
            if found:
                break
        if len(found) != 1:
            raise LookupError(f"{name}: {len(found)} symbols")
        return ctypes.CFUNCTYPE(result, *arguments)(self._base + self._symbols[found[0]])

    def last_error(self) -> str:
        return (self.library.ncclGetLastError(None) or b"").decode()


def _symbols(content: bytes) -> Iterator[tuple[str, int]]:
    (offset,) = struct.unpack_from("<Q", content, 0x28)
    size, count = struct.unpack_from("<HH", content, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", content, offset + i * size) for i in range(count)]
    for section in sections:
        if section[1] != 2:  # SHT_SYMTAB
            continue
        names = sections[section[6]][4]
        for i in range(section[5] // 24):
            name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", content, section[4] + i * 24)
            if value:
                yield content[names + name : content.index(b"\0", names + name)].decode(), value


def in_child(environment: dict[str, str], body: Callable[[], str]) -> str:
    """What `body` returns in a process of its own with these variables. What NCCL prints there is dropped."""
    with tempfile.TemporaryFile() as result:
        child = os.fork()
        if child == 0:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            set_variable = ctypes.CDLL(None).setenv
            for name, value in environment.items():
                set_variable(name.encode(), value.encode(), 1)
            try:
                text = body()
            except Exception as error:  # the caller compares what it gets
                text = repr(error)
            os.write(result.fileno(), text.encode())
            os._exit(0)
        os.waitpid(child, 0)
        result.seek(0)
        return result.read().decode()
