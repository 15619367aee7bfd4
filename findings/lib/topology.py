"""What NCCL makes of a network plugin's devices: adds them to the topology of a host with one processor, as ncclCommInitRank does."""

import ctypes
import re
import struct
import tempfile
from dataclasses import dataclass, field
from typing import Any

from nccl import Nccl

INT, POINTER = ctypes.c_int, ctypes.c_void_p
HOST = '<system version="1"><cpu numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1"></cpu></system>'


@dataclass
class Device:
    name: str
    guid: int
    port: int = 1
    speed: int = 100000
    latency: float = 0.0
    path: str = ""
    parts: list[int] = field(default_factory=list)


class Properties(ctypes.Structure):
    """The beginning of those of versions 11 and 12, which both have."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("path", ctypes.c_char_p),
        ("guid", ctypes.c_uint64),
        *((name, INT) for name in ("pointers", "is_global", "flush", "speed", "port")),
        ("latency", ctypes.c_float),
        *((name, INT) for name in ("communicators", "receives", "type", "version", "count")),
        ("parts", INT * 4),
    ]


def _write(address: int, value: int) -> int:
    INT.from_address(address).value = value
    return 0


class Topology:
    """If NCCL fuses some devices, the plugin agrees; with `same_card`, only if they have one GUID."""

    def __init__(self, library: str, devices: list[Device], same_card: bool = False) -> None:
        self._nccl, self._devices = Nccl(library), list(devices)
        fused, given = -1, len(devices)
        names = [device.name.encode() for device in devices]
        paths = [device.path.encode() if device.path else None for device in devices]

        def properties(number: int, out: int) -> int:
            device = self._devices[number]
            parts = device.parts or [number]
            ctypes.memset(out, 0, 112)  # to the end of version 11
            place = Properties.from_address(out)
            place.name, place.path, place.guid, place.port = names[number], paths[number], device.guid, device.port
            place.speed, place.latency = device.speed, device.latency
            place.pointers, place.communicators, place.receives, place.count = 1, 1000, 8, len(parts)
            place.parts[: len(parts)] = parts
            return 0

        def fuse(number: int, parts: int) -> int:
            count, *rest = (INT * 5).from_address(parts)
            members = [self._devices[part] for part in rest[:count]]
            if same_card and any(one.guid != members[0].guid for one in members):
                return 5
            name, speed = "+".join(one.name for one in members), sum(one.speed for one in members)
            self._devices.append(Device(name, members[0].guid, speed=speed, path=members[0].path, parts=rest[:count]))
            names.append(name.encode())
            paths.append(paths[rest[0]])
            return _write(number, len(self._devices) - 1)

        def counts(_plugin: int, real: int, merged: int) -> int:
            return _write(real, given) | _write(merged, fused)

        def set_fused(_plugin: int, count: int) -> int:
            nonlocal fused
            fused = count
            return 0

        def count(out: int) -> int:
            return _write(out, len(self._devices))

        kinds = (
            (counts, INT, POINTER, POINTER),
            (set_fused, INT, INT),
            (properties, INT, POINTER),
            (fuse, POINTER, POINTER),
            (count, POINTER),
        )
        self._calls: list[Any] = [ctypes.CFUNCTYPE(INT, *arguments)(call) for call, *arguments in kinds]
        self._name = ctypes.create_string_buffer(b"Plugin")
        self._xml = ctypes.create_string_buffer(64 << 20)
        ctypes.cast(self._xml, ctypes.POINTER(INT))[1] = 64  # nodes that there is room for
        with tempfile.NamedTemporaryFile("w+") as file:
            file.write(HOST)
            file.flush()
            self._call("ncclTopoGetXmlFromFile", file.name.encode(), self._xml, 1)
            self._call("ncclTopoProcessNet", self._xml, None, self._info())
            self._call("ncclTopoDumpXmlToFile", file.name.encode(), self._xml)
            with open(file.name) as written:
                self.text = written.read()

    def nets(self, *keys: str) -> list[str]:
        """These attributes of the devices that NCCL uses."""
        used = [net for net in re.findall("<net .*>", self.text) if ' keep="1"' in net]
        return [" ".join(f"{key} {found[1]}" for key in keys if (found := re.search(f' {key}="([^"]*)"', net))) for net in used]

    def show(self) -> None:
        """NCCL prints the bandwidths with NCCL_DEBUG=INFO."""
        system = POINTER()
        self._call("ncclTopoGetSystemFromXml", self._xml, ctypes.byref(system), 0)
        self._call("ncclTopoPrint", system)

    def _info(self) -> Any:
        """ncclTopoNetInfo: flags, levels, name and functions."""
        version, level, force = INT(), INT(), POINTER()
        self._nccl.library.ncclGetVersion(ctypes.byref(version))
        extra = (1, 0) if version.value >= 23200 else ()
        self._call("ncclTopoGetFusionEnv", ctypes.byref(level), ctypes.byref(force), *extra)
        flags = struct.pack("<4xi4xi", 0, level.value) if version.value < 23000 else struct.pack("<3x?ii4xii", True, 0, 4, level.value, 0)
        places = [ctypes.cast(call, POINTER).value or 0 for call in self._calls]
        places.insert(2, ctypes.addressof(self._name))
        return ctypes.create_string_buffer(flags + struct.pack("<7Q8x", force.value or 0, *places))

    def _call(self, function: str, *arguments: Any) -> None:
        kinds = [ctypes.c_uint64 if isinstance(one, int) else POINTER for one in arguments]
        result = self._nccl.function(function, INT, *kinds)(*arguments)
        ctypes.CDLL(None).fflush(None)
        if result:
            raise RuntimeError(f"{function}: result {result}")
