#!/usr/bin/env python3
"""Draws docs/hang.svg and docs/top.svg: what `ferrite hang all` and `ferrite top` show of a real job on the software device.

    scripts/pictures.py [--dist DIST] [--out FOLDER]

The job is one of scripts/hang_injections.py: four processes that run AllReduce over a ring. For `top`, one path loses everything. For
`hang`, one process is stopped. Each picture is a terminal of 80 columns, as text. It needs a folder as scripts/build.sh makes it, and
Python's standard library.
"""

import argparse
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from html import escape
from pathlib import Path

import hang_injections
from hang_injections import Case, Job, environment

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, LINES = 80, 24
RANKS = 4


def screen(command: list[str], seconds: float) -> list[str]:
    """The lines that a command shows on a terminal after this time, or when it has ended."""
    pid, terminal = pty.fork()
    if not pid:
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    os.kill(pid, signal.SIGWINCH)
    text, until = b"", time.time() + seconds
    with contextlib.suppress(OSError):  # the end of a terminal
        while (left := until - time.time()) > 0:
            if select.select([terminal], [], [], left)[0]:
                text += os.read(terminal, 65536)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    os.close(terminal)
    os.waitpid(pid, 0)
    shown = text.decode(errors="replace")
    if "\x1b[2J" not in shown:
        return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", shown).replace("\r", "").splitlines()
    # The latest whole screen: a line is printed where the cursor has been put.
    frame = shown.split("\x1b[2J")[-2 if shown.count("\x1b[2J") > 1 else -1]
    found = re.findall(r"\x1b\[(\d+);1H([^\x1b]*)", frame)
    lines = [""] * max((int(row) for row, _ in found), default=0)
    for row, words in found:
        lines[int(row) - 1] = words
    return lines


def draw(path: Path, title: str, verdict: str, lines: list[str]) -> None:
    wide, high, top = 8.4, 17, 62
    width, height = round(COLUMNS * wide + 32), top + len(lines) * high + 16
    rows = "\n".join(
        f'<text x="16" y="{top + 16 + at * high}">{escape(line, quote=False)}</text>' for at, line in enumerate(lines) if line.strip()
    )
    when = time.strftime("%Y-%m-%d")
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">\n'
        "<style>text{font:14px 'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#ddd;white-space:pre}"
        ".head{font:bold 14px 'DejaVu Sans',Verdana,sans-serif}.sub{font:13px 'DejaVu Sans',Verdana,sans-serif}</style>\n"
        f'<rect width="100%" height="100%" rx="6" fill="#1e1e1e"/>\n'
        f'<text class="head" x="16" y="24">{escape(title)}</text>\n'
        f'<text class="sub" x="16" y="44">{escape(verdict)}; {escape(os.uname().nodename)}, {when}, softrnic</text>\n'
        f'<line x1="0" x2="{width}" y1="{top - 6}" y2="{top - 6}" stroke="#555"/>\n{rows}\n</svg>\n'
    )


PICTURES = {
    "top": ("one way", "ferrite top", "one path loses everything: the connections over it recover"),
    "hang": ("stopped", "ferrite hang all", "rank 2 of 4 is stopped, and all others name it"),
}


def case_of(name: str) -> Case:
    ring = [*range(RANKS)]
    return Case(0, PICTURES[name][0], RANKS, RANKS, [[ring]], 2, hang_injections.STEPS, True, 0, 1, 4)


def watch(job: Job, seconds: float) -> None:
    """Reads what the processes say, which would wait otherwise."""
    until = time.time() + seconds
    while time.time() < until:
        job.listen()
        time.sleep(0.05)


def picture(name: str, dist: Path, out: Path) -> None:
    """In a process of its own, whose environment is that of the job."""
    _, command, verdict = PICTURES[name]
    hang_injections.BYTES = 1 << 20
    job = Job(case_of(name), dist, Path(os.environ["FERRITE_REPORT_DIR"]))
    try:
        job.start()
        watch(job, 2)
        job.inject()
        watch(job, 6)
        program, *rest = command.split()
        # A process that is stopped has all the time of `--timeout`; the other command does not end by itself.
        draw(out / f"{name}.svg", command, verdict, screen([str(dist / "bin" / program), *rest], 8 if name == "top" else 30))
    finally:
        job.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of bin/ferrite, lib/libnccl-net.so and softrnic/")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder for hang.svg and top.svg")
    parser.add_argument("--inside", choices=PICTURES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    dist, out = options.dist.resolve(), options.out.resolve()
    if options.inside:
        picture(options.inside, dist, out)
        return 0
    for name in PICTURES:
        with tempfile.TemporaryDirectory() as folder:
            env = environment(case_of(name), dist, Path(folder), f"pictures-{os.getpid()}-{name}")
            command = [sys.executable, str(Path(__file__).resolve()), "--dist", str(dist), "--out", str(out), "--inside", name]
            subprocess.run(command, env=env, check=True)
        print(out / f"{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
