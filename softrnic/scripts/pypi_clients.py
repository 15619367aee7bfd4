#!/usr/bin/env python3
"""RDMA programs from PyPI, unmodified, on softrnic: installs pinned releases and lets two processes of each exchange data.

Each byte is compared, and the ports of softrnic have to have carried it. With --faults also under loss. The wheels go into a
virtual environment in the cache (about 700 MB), which is made once. softrnic/docs/clients.md lists what runs.
"""

import argparse
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "softrnic/tests/clients/pypi"
#: What the packages import, as far as these programs use it.
COMMON = (
    "annotated-types==0.8.0 anyio==4.16.0 certifi==2026.10.19.post1 h11==0.16.0 httpcore==1.0.9 httpx==0.28.1 idna==3.20"
    " jsonargparse==4.53.0 numpy==2.4.6 pybind11==3.1.0 pydantic==2.14.4 pydantic_core==2.50.5 PyYAML==6.0.4 pyzmq==27.3.0"
    " redis==8.1.0 typing_extensions==4.16.0 typing-inspection==0.4.5"
).split()
#: How long a program may take, in seconds.
LIMIT = 180


@dataclasses.dataclass(frozen=True)
class Client:
    package: str
    program: str
    options: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    #: It loads a libibverbs of its own: softrnic's is loaded before it.
    brings_libibverbs: bool = False


CLIENTS = [
    Client("ibverbs==2026.10.22", "rdma4py.py"),
    Client("mooncake-transfer-engine-non-cuda==0.3.13.post1", "mooncake_engine.py"),
    # UCX compares the addresses of RoCE devices with the routes of the host.
    Client("nixl-cu12==1.5.1", "nixl_agents.py", variables=(("UCX_IB_ROCE_REACHABILITY_MODE", "all"),), brings_libibverbs=True),
    # It asks for a min_rnr_timer of 32. mlx5 takes the lowest five bits, and other devices refuse it.
    Client("dlslime==0.1.23", "dlslime_endpoints.py", options=("--driver", "mlx5")),
    Client("peercache==0.8.4", "peercache_engines.py"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="what scripts/build.sh has made (default: %(default)s)")
    parser.add_argument("--only", metavar="PACKAGE", help="only the package of this name")
    parser.add_argument("--faults", metavar="RULE", help="fault rule of softrnic for all runs, as 'drop chance=0.001'")
    options = parser.parse_args()
    chosen = [client for client in CLIENTS if options.only in (None, client.package.split("==")[0])]
    if not chosen:
        parser.error(f"--only {options.only}: must be one of {', '.join(client.package.split('==')[0] for client in CLIENTS)}")
    dist = options.dist.resolve()
    if not (dist / "bin/softrnic").exists():
        parser.error(f"--dist {dist}: no bin/softrnic in it; scripts/build.sh makes it")
    python = environment()
    failed, ran = [], 0
    for client in chosen:
        if not install(python, client):
            print(f"skipped: {client.package}: pip cannot install it")
            continue
        ran += 1
        began = time.monotonic()
        output = run(python, dist, client, options.faults)
        if output is None:
            print(f"ok  {time.monotonic() - began:5.1f} s  {client.package}", flush=True)
        else:
            failed.append(client.package)
            print(f"FAILED  {client.package}\n{output}", flush=True)
    if not ran:
        return 77
    return 1 if failed else 0


def environment() -> Path:
    """The Python of the virtual environment, which is made if there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ferrite"
    folder = cache / f"pypi-clients-{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    return python


def install(python: Path, client: Client) -> bool:
    """Without what the packages say they need: that is gigabytes of CUDA, which none of these programs imports."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    return subprocess.run([*command, *COMMON, client.package], stderr=subprocess.DEVNULL).returncode == 0


def run(python: Path, dist: Path, client: Client, faults: str | None) -> str | None:
    """What the program said, if it failed."""
    environ = dict(os.environ, PATH=f"{dist / 'bin'}{os.pathsep}{os.environ['PATH']}", PYTHONDONTWRITEBYTECODE="1")
    environ.update(client.variables)
    command = [dist / "bin/softrnic", "run", "--tools", "--faithful", *client.options, *(["--faults", faults] if faults else []), "--"]
    if client.brings_libibverbs:
        # Here and not in the environment: env itself and softrnic are no RDMA programs.
        command += [shutil.which("env") or "env", f"LD_PRELOAD={dist / 'softrnic-tools/libibverbs.so.1'}"]
    process = subprocess.Popen(
        [*command, python, PROGRAMS / client.program],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return f"{output}\nnot ended after {LIMIT} s"
    return None if process.returncode == 0 else f"{output}\nexit status {process.returncode}"


if __name__ == "__main__":
    sys.exit(main())
