"""Ferrite, a network plugin for NCCL. Without arguments it prints what to set, so that one line makes NCCL use it:

    eval "$(nccl-net-ferrite)"            # the same as: eval "$(python -m nccl_net_ferrite)"

    nccl-net-ferrite path                 # the plugin's file alone
    nccl-net-ferrite ab [OPTION...]       # compares it with NCCL's built-in IB transport; under torchrun: -m nccl_net_ferrite ab
    nccl-net-ferrite ab --check           # what is in the way of that, in seconds
    nccl-net-ferrite matrix [OPTION...]   # tries every operation of NCCL over it
    nccl-net-ferrite ddp [OPTION...]      # trains a small model over it and over other networks
    nccl-net-ferrite job                  # prints the comparison as a job of Kubernetes
    nccl-net-ferrite softrnic [WORD...]   # the software RDMA device
    nccl-net-ferrite WORD...              # anything else goes to the program ferrite: doctor, compare, check, top, hang, ...

--help after one of these words says more. Exit code 2: this machine cannot use it; standard error says why, and what helps.
"""

import os
import shlex
import sys
from pathlib import Path

from . import ab, ddp, elf, exit_codes, matrix, repository
from .exit_codes import Invalid

PROGRAMS = {"ab": ab.main, "ddp": ddp.main, "matrix": matrix.main}


# Bytes of a path in NCCL_NET_PLUGIN that NCCL 2.26 and later take.
LONGEST_PATH = 254


def why_not_taken(plugin: Path) -> str:
    """Why some releases of NCCL do not take the file by its path; "" if all do that take paths."""
    if len(os.fsencode(plugin)) > LONGEST_PATH:
        return f"NCCL 2.26 and later take no path of more than {LONGEST_PATH} characters"
    return "NCCL 2.27 and later take a comma for the end of a path" if "," in str(plugin) else ""


def environment(plugin: Path) -> str:
    """As lines of a shell."""
    found = elf.check_machine(plugin)
    if why := why_not_taken(plugin):
        print(f"warning: {plugin}: {why}: install the package in another folder", file=sys.stderr)
    values = {"NCCL_NET_PLUGIN": str(plugin), "NCCL_NET": "Ferrite"}
    about = f"# Ferrite {found.version}, for {found.machine} with glibc {elf.text_of(found.glibc)} or newer"
    return "\n".join([about, *(f"export {name}={shlex.quote(value)}" for name, value in values.items())])


def execute(program: str, arguments: list[str]) -> int:
    """A program of bin/ takes the place of this process; returns only where it cannot be run."""
    path = repository.program(program)
    try:
        sys.stdout.flush()
        os.execv(path, [str(path), *arguments])
    except PermissionError as error:
        raise Invalid(f"{path} cannot be run: {error.strerror}; chmod +x it, on a file system that is not mounted noexec") from error


def run(arguments: list[str]) -> int:
    first = arguments[0] if arguments else "env"
    if first in ("-h", "--help"):
        print(__doc__)
    elif first == "env" and len(arguments) < 2:
        print(environment(repository.PLUGIN))
    elif first == "path" and len(arguments) < 2:
        print(repository.PLUGIN)
    elif first == "job" and len(arguments) < 2:
        print(repository.JOB.read_text(), end="")
    elif first == "softrnic":
        return execute("softrnic", arguments[1:])
    else:
        return execute("ferrite", arguments)
    return exit_codes.GOOD


def main() -> int:
    arguments = sys.argv[1:]
    program = PROGRAMS.get(arguments[0]) if arguments else None
    if program:
        # It reads sys.argv, and names itself by its first word.
        sys.argv[:2] = [f"nccl-net-ferrite {arguments[0]}"]
        return program()
    return exit_codes.of_program(lambda: run(arguments))


def ferrite() -> int:
    """The command `ferrite`."""
    return exit_codes.of_program(lambda: execute("ferrite", sys.argv[1:]))


def softrnic() -> int:
    """The command `softrnic`."""
    return exit_codes.of_program(lambda: execute("softrnic", sys.argv[1:]))
