"""Tests of the processes of a run: none is left, whatever ends it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

from nccl_net_ferrite import exit_codes, launch
from nccl_net_ferrite.exit_codes import Invalid

from . import fixtures


@fixtures.needs_ferrite
class Interruption(unittest.TestCase):
    def test_no_process_is_left(self) -> None:
        code, told, _ = self.interrupt(signal.SIGINT, "hang")
        self.assertEqual(code, exit_codes.INTERRUPTED)
        self.assertIn("interrupted: 0 runs were done, too few for a report; no process of this run is left", told)

    def test_what_was_done_is_reported(self) -> None:
        code, told, report = self.interrupt(signal.SIGTERM, "hang-later")
        self.assertEqual(code, exit_codes.INTERRUPTED)
        self.assertRegex(told, r"interrupted: 20 runs were done; .*/report.md has the first 20; no process")
        self.assertIn("The run was interrupted: 20 runs were done, and this report has the first 20.", report)

    def interrupt(self, number: signal.Signals, fake: str) -> tuple[int, str, str]:
        """Once ranks hang: exit code, standard error, and the report."""
        with tempfile.TemporaryDirectory() as folder:
            plugin, hanging = Path(folder) / "p.so", Path(folder) / "hanging"
            plugin.write_bytes(fixtures.library_here())
            code = (
                "import sys; from nccl_net_ferrite import ab, launch\n"
                "ab.RANK, launch.seen_by_driver = 'tests.fake_ab_rank', lambda *_: (2, '2.21.5')\n"
                f"sys.argv = ['ab.py', '--ranks', '2', '--sizes', '8', '--plugin', {str(plugin)!r}, '--out', {folder + '/out'!r}]\n"
                f"sys.argv += ['--libnccl', {str(plugin)!r}]\n"
                "sys.exit(ab.main())"
            )
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                cwd=fixtures.SCRIPTS,
                env=fixtures.built_environment(FAKE=fake, FAKE_HANGS=str(hanging)),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=fixtures.obey_interrupts,
            )
            self.addCleanup(process.kill)
            # Each rank that hangs leaves a file; both are then waited for, and nothing else runs.
            while len(pids := [path.suffix[1:] for path in Path(folder).glob("hanging.*")]) < 2:
                self.assertIsNone(process.poll(), "it has ended")
                time.sleep(0.01)
            process.send_signal(number)
            _, told = process.communicate(timeout=60)
            self.assertEqual([pid for pid in pids if not fixtures.has_ended(pid)], [])
            report = Path(folder) / "out/report.md"
            return process.returncode, told, report.read_text() if report.exists() else ""


class RunsOfRanks(fixtures.InFolder):
    def run_ranks(self, *fakes: str) -> None:
        """One rank for each of `fakes`."""
        task = json.dumps({"collectives": [], "sizes": [], "networks": [""], "result": str(self.out / "01A.json")})
        ranks = [
            launch.Rank(
                number,
                "tests.fake_ab_rank",
                fixtures.built_environment(
                    FAKE=fake,
                    FAKE_HANGS=str(self.out / "hanging"),
                    AB_TASK=task,
                    RANK=str(number),
                    WORLD_SIZE=str(len(fakes)),
                    NCCL_NET="Ferrite",
                    NCCL_DEBUG_FILE=str(self.out / f"log{number}"),
                ),
            )
            for number, fake in enumerate(fakes)
        ]
        launch.run_ranks(ranks, self.out, "01A", 60)

    def left(self) -> list[str]:
        """Processes that said that they were there, and have not ended."""
        found = [path.suffix[1:] for path in self.out.glob("hanging.*")]
        self.assertTrue(found)
        for pid in found:
            self.addCleanup(kill, int(pid))
        return [pid for pid in found if not fixtures.has_ended(pid)]

    def test_a_child_that_outlives_its_rank_is_ended(self) -> None:
        self.run_ranks("", "orphan")
        self.assertEqual(self.left(), [])

    def test_a_child_of_a_rank_that_fails_is_ended(self) -> None:
        with self.assertRaisesRegex(Invalid, "rank 2: ended with 3"):
            self.run_ranks("", "orphan", "exit-after-orphan")
        self.assertEqual(self.left(), [])

    def test_an_interruption_while_a_rank_is_started_ends_it(self) -> None:
        started = []

        class Interrupted(subprocess.Popen[bytes]):
            def __init__(self, *arguments: Any, **more: Any) -> None:
                super().__init__(*arguments, **more)
                started.append(self.pid)
                os.kill(os.getpid(), signal.SIGINT)

        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        self.replace(subprocess, "Popen", Interrupted)
        with self.assertRaises(KeyboardInterrupt):
            self.run_ranks("hang", "hang")
        self.assertEqual(len(started), 1)
        self.addCleanup(kill, started[0])
        self.assertTrue(fixtures.has_ended(str(started[0])))


def kill(pid: int) -> None:
    # The number of one that has ended may be another process's.
    if fixtures.has_ended(str(pid)):
        return
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
