"""Tests of scripts/ab.py without a GPU: NCCL and the CUDA driver are played by fake_nccl.c."""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import threading
import unittest
from pathlib import Path

from nccl_net_ferrite import exit_codes, launch
from nccl_net_ferrite.rendezvous import Rendezvous, receive

from . import fixtures

# Of the communicators of a block.
NETWORKS = ("IB", "Ferrite", "Ferrite", "IB")


@unittest.skipUnless(shutil.which("cc"), "no C compiler")
@fixtures.needs_ferrite
class Timing(fixtures.WithFakeNccl):
    def setUp(self) -> None:
        super().setUp()
        (self.out / "p.so").write_bytes(fixtures.library_here())

    def compare(self, *arguments: str, fake: str = "", slower: str = "1") -> "subprocess.CompletedProcess[str]":
        return fixtures.run(
            "ab.py",
            "--libnccl",
            self.library,
            "--libcuda",
            self.library,
            "--ranks",
            "2",
            "--plugin",
            self.out / "p.so",
            "--out",
            self.out / "report",
            "--blocks",
            "1",
            "--seconds",
            "1",
            *arguments,
            FAKE=fake,
            FAKE_B=slower,
            timeout=100,
        )

    def test_the_device_tells_the_time(self) -> None:
        done = self.compare("--collectives", "all_reduce", "--sizes", "8,1M", slower="1.3")
        self.assertEqual(done.returncode, exit_codes.TOO_FEW_RUNS, done.stderr)
        raw = json.loads((self.out / "report/raw.json").read_text())
        # An operation takes 20 ms; the one before the first event is no part of it.
        self.assertEqual([(round(row["a_us"][0]), round(row["b_us"][0])) for row in raw["rows"]], [(20_000, 26_000)] * 2)
        self.assertEqual(raw["about"]["versions"], {"nccl": "2.99.1"})
        # Each communicator has a part of the log: its network alone.
        self.assertEqual([[one["network"] for one in run] for run in raw["about"]["evidence"]], [[name] * 2 for name in NETWORKS])

    def test_the_same_in_processes_of_their_own(self) -> None:
        done = self.compare("--collectives", "all_reduce", "--sizes", "8", "--fresh", slower="1.3")
        self.assertEqual(done.returncode, exit_codes.TOO_FEW_RUNS, done.stderr)
        [row] = json.loads((self.out / "report/raw.json").read_text())["rows"]
        self.assertEqual(([*map(round, row["a_us"])], [*map(round, row["b_us"])]), ([20_000] * 2, [26_000] * 2))

    def test_another_network_than_asked_for_is_noticed(self) -> None:
        self.assertIn("run 01, rank 0: NCCL used network Socket, not IB", self.compare("--sizes", "8", fake="fallback").stderr)

    def test_each_collective_moves_and_checks_its_bytes(self) -> None:
        done = self.compare("--sizes", "4,64K", "--collectives", "all_reduce,all_gather,reduce_scatter,alltoall,send_recv")
        self.assertEqual(done.returncode, exit_codes.TOO_FEW_RUNS, done.stderr)
        rows = json.loads((self.out / "report/raw.json").read_text())["rows"]
        self.assertEqual(
            [(row["collective"], row["bytes"]) for row in rows],
            [
                ("all_reduce", 4),
                ("all_reduce", 65536),
                ("all_gather", 8),
                ("all_gather", 65536),
                ("reduce_scatter", 8),
                ("reduce_scatter", 65536),
                ("alltoall", 8),
                ("alltoall", 65536),
                ("send_recv", 4),
                ("send_recv", 65536),
            ],
        )

    def test_a_wrong_element_is_no_result(self) -> None:
        done = self.compare("--collectives", "all_reduce", "--sizes", "1M", fake="wrong")
        self.assertEqual(done.returncode, exit_codes.INVALID)
        self.assertIn("run 01: wrong values over IB in all_reduce of 1M", done.stderr)

    def test_under_a_launcher_with_the_software_device(self) -> None:
        (self.out / "libibverbs.so.1").touch()
        command: list[str | Path] = [
            sys.executable,
            fixtures.SCRIPTS / "ab.py",
            "--libnccl",
            self.library,
            "--libcuda",
            self.library,
            "--plugin",
            self.out / "p.so",
            "--out",
            self.out / "report",
            "--blocks",
            "1",
            "--seconds",
            "1",
            "--sizes",
            "8",
            "--collectives",
            "send_recv",
            "--softrnic",
            self.out,
        ]
        port = str(fixtures.own_ports(self, 3))
        ranks = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=fixtures.built_environment(
                    FAKE_B="1",
                    RANK=str(rank),
                    WORLD_SIZE="2",
                    LOCAL_RANK=str(rank),
                    LOCAL_WORLD_SIZE="2",
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=port,
                ),
            )
            for rank in range(2)
        ]
        for one in ranks:
            self.addCleanup(one.kill)
        told = [one.communicate(timeout=100) for one in ranks]
        self.assertEqual([one.returncode for one in ranks], [exit_codes.TOO_FEW_RUNS, exit_codes.GOOD], told)
        self.assertIn("block 1 of 1: ", told[0][0])
        self.assertEqual(told[1][0], "")

    def test_what_is_wrong_with_pytorch(self) -> None:
        for torch, words in [
            ("raise ModuleNotFoundError(\"No module named 'torch'\")", "No module named 'torch'; install it, or name a libnccl.so.2"),
            ("__version__ = '9'", "PyTorch 9 in .* loads no libnccl.so.2: install PyTorch for CUDA, or name a"),
        ]:
            (self.out / "torch.py").write_text(torch)
            words_given: list[str | Path] = ["--libcuda", self.library, "--plugin", self.out / "p.so", "--out", self.out / "report"]
            done = fixtures.run("ab.py", *words_given, PYTHONPATH=str(self.out))
            self.assertEqual((done.returncode, len(done.stderr.splitlines()), done.stdout), (exit_codes.INVALID, 1, ""), done.stderr)
            self.assertRegex(done.stderr, words)

    def test_the_nccl_of_pytorch(self) -> None:
        (self.out / "torch.py").write_text(f"import ctypes; __version__ = '9'; ctypes.CDLL({str(self.library)!r})")
        words: list[str | Path] = ["--check", "--softrnic", self.out, "--libcuda", self.library, "--plugin", self.out / "p.so"]
        (self.out / "libibverbs.so.1").touch()
        done = fixtures.run("ab.py", *words, "--out", self.out / "report", PYTHONPATH=str(self.out))
        self.assertEqual(done.returncode, exit_codes.GOOD, done.stdout)
        self.assertIn(f"ok    NCCL    2.99.1 of PyTorch 9, {self.library}", done.stdout)

    def test_what_cannot_be_tried(self) -> None:
        self.assertIn("sees no GPU", self.compare(fake="no-gpu").stderr)
        done = fixtures.run(
            "ab.py",
            "--libnccl",
            self.out / "p.so",
            "--libcuda",
            self.library,
            "--plugin",
            self.out / "p.so",
            "--out",
            self.out / "o",
        )
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (exit_codes.INVALID, 1))
        self.assertRegex(done.stderr, "--libnccl .*/p.so: .*(file too short|invalid ELF header)")


class Exchange(unittest.TestCase):
    def test_all_hear_all(self) -> None:
        port = fixtures.own_ports(self, 1)
        heard = {}

        def rank(number: int) -> None:
            one = Rendezvous(number, 3, "127.0.0.1", port, 30)
            heard[number] = [one.gather(number * 10), one.gather({"long": "x" * 100_000 * number})]
            one.close()

        threads = [threading.Thread(target=rank, args=(number,)) for number in (2, 1, 0)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        self.assertEqual([heard[number][0] for number in range(3)], [[0, 10, 20]] * 3)
        self.assertEqual(len(heard[0][1][2]["long"]), 200_000)

    def test_strangers_are_no_ranks(self) -> None:
        port = fixtures.own_ports(self, 1)
        found = []
        first = threading.Thread(target=lambda: found.append(Rendezvous(0, 2, "127.0.0.1", port, 30).gather(0)))
        first.start()
        for said in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\0\0\0\1x", b"\0\0\0\1" + b"7"):
            stranger = None
            while stranger is None:
                self.assertTrue(first.is_alive(), "rank 0 listens")
                with contextlib.suppress(ConnectionRefusedError):
                    stranger = socket.create_connection(("127.0.0.1", port))
            with stranger:
                stranger.sendall(said)
        Rendezvous(1, 2, "127.0.0.1", port, 30).gather(10)
        first.join()
        self.assertEqual(found, [[0, 10]])

    def test_held_ports_are_for_who_names_them(self) -> None:
        with launch.own_ports(2) as first, socket.socket() as other:
            self.assertRaises(OSError, other.bind, ("127.0.0.1", first + 1))
            with socket.create_server(("", first)):
                socket.create_connection(("127.0.0.1", first)).close()

    def test_a_rank_that_goes_is_missed(self) -> None:
        one, other = socket.socketpair()
        other.close()
        self.assertRaisesRegex(ConnectionError, "a rank has gone", receive, one)
        one.close()
