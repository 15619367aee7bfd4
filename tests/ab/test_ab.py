"""Tests of scripts/ab.py without torch and without a GPU: ranks are played by fake_worker.py, and PyTorch by a file of that name."""

import argparse
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import plays


from abtest import compare, conclude, ending, plan, probe, run

HERE = plays.HERE


class Play(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = Path(self.folder.name)
        self.plugin = self.out / "libnccl-net.so"
        self.plugin.write_bytes(b"a plugin")
        self.options = argparse.Namespace(
            plugin=self.plugin, libnccl=None, libcuda="", collectives=["all_reduce", "send_recv"], sizes=[8, 4096, 1 << 20], blocks=1, ranks=2,
            dtype="float32", gdr="as-is", both=[], only_b=[], softrnic=None, limit=60, effect=10, out=self.out / "report", read=None,
            again=None)
        self.said = []
        for patch in [mock.patch.object(run, "WORKER", HERE / "fake_worker.py"), mock.patch.object(probe, "gpus_of_torch", lambda _: 2),
                      mock.patch("builtins.print", lambda *words, **_: self.said.append(" ".join(map(str, words))))]:
            patch.start()
            self.addCleanup(patch.stop)

    def go(self, **fake: str) -> int:
        with mock.patch.dict(os.environ, plays.environment(**fake), clear=True):
            return compare.run(self.options)

    def refused(self, **fake: str) -> str:
        with self.assertRaises(plan.Invalid) as raised:
            self.go(**fake)
        return str(raised.exception)

    def raw(self) -> dict:
        return json.loads((self.options.out / "raw.json").read_text())


class Comparison(Play):
    def test_equal_sides_are_alike(self):
        self.options.blocks = 3
        self.assertEqual(self.go(), ending.GOOD)
        raw = self.raw()
        self.assertEqual([row["verdict"] for row in raw["rows"]], ["alike"] * 6)
        self.assertEqual([row["rows"] for row in raw["together"]], ["all_reduce", "send_recv", "all"])
        self.assertEqual((raw["about"]["order"], len(raw["about"]["seconds"])), ("ABBABAABABBA", 12))
        text = (self.options.out / "report.md").read_text()
        self.assertIn("better in 0, worse in 0, alike within 10 % in 6, too few runs to tell in 0.", text)
        self.assertRegex(text, r"This run would have found .* differs by \d\.\d % in the median row, by \d\.\d % in the noisiest")
        self.assertIn("NCCL_NET=Ferrite", text)

    def test_one_block_cannot_tell_a_factor_of_two(self):
        self.assertEqual(self.go(FAKE_B="2"), ending.UNTOLD)
        self.assertEqual({row["verdict"] for row in self.raw()["rows"]}, {"too few runs to tell"})
        self.assertIn("With 1 block of four runs no difference could have been shown, however large", " ".join(self.said))

    def test_another_network_is_refused(self):
        self.assertIn("used network Socket, not Ferrite", self.refused(FAKE="fallback"))

    def test_data_that_went_past_the_network_is_refused(self):
        self.assertIn("no connection went via NET/IB, only via SHM", self.refused(FAKE="shm"))

    def test_different_gpudirect_is_refused(self):
        self.assertIn("GPUDirect differs: A ['off'], B ['on']", self.refused(FAKE="gdr"))

    def test_wrong_values_are_refused(self):
        self.assertIn("wrong values in all_reduce of 8", self.refused(FAKE="wrong"))

    def test_a_rank_that_dies_is_quoted(self):
        why = self.refused(FAKE="die")
        self.assertIn("run 02B, rank 1: ended with 3", why)
        self.assertIn("the peer has died", why)

    def test_a_run_that_hangs_is_ended(self):
        self.options.limit = 1
        self.assertIn("not done after 1 s", self.refused(FAKE="hang"))


class Beforehand(Play):
    """What can be known is said before the first rank is started."""

    def refused(self, **fake: str) -> str:
        with mock.patch.object(run, "go", side_effect=AssertionError("a run has begun")):
            return super().refused(**fake)

    def test_no_plugin_is_named(self):
        self.options.plugin = self.out / "none.so"
        self.assertIn("none.so: no such file", self.refused())

    def test_a_folder_that_cannot_be_written(self):
        self.options.out = self.plugin / "report"
        self.assertIn(f"--out {self.plugin}/report: Not a directory", self.refused())

    def test_no_software_device(self):
        self.options.softrnic = self.out
        self.assertIn("no libibverbs.so.1 there", self.refused())

    def test_another_type_without_pytorch(self):
        self.options.libnccl, self.options.dtype = self.plugin, "int32"
        self.assertIn("--dtype int32: with --libnccl it is float32", self.refused())

    def test_ports_that_do_not_exist(self):
        self.assertIn("MASTER_PORT=65533: each run takes a port above it, up to 65537",
                      self.refused(**torchrun(0, 2), MASTER_PORT="65533"))

    def test_the_software_device_on_more_than_one_machine(self):
        (self.out / "libibverbs.so.1").touch()
        self.options.softrnic = self.out
        self.assertIn("all ranks on one machine: 2 of 4 are on this one", self.refused(**torchrun(1, 4)))


def torchrun(rank: int, world: int, here: int = 2) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank % here), "LOCAL_WORLD_SIZE": str(here),
            "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}


class Launched(Play):
    def test_a_rank_of_a_launcher_runs_alone(self):
        fake = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "MASTER_ADDR": "head"}
        self.assertEqual(self.go(**fake), ending.GOOD)
        outputs = sorted(path.name for path in self.options.out.glob("*.out"))
        self.assertEqual(outputs, ["01A-rank1.out", "02B-rank1.out", "03B-rank1.out", "04A-rank1.out"])

    def test_what_its_ranks_share_on_the_software_device(self):
        (self.out / "libibverbs.so.1").touch()
        self.options.softrnic = self.out
        seen = []
        with mock.patch.object(run.ranks, "run", lambda started, *_: seen.append(started[0].environment)):
            for rank in (1, 1):
                self.go(**torchrun(rank, 2), MASTER_PORT="2000")
        self.assertEqual(seen[:4], seen[4:])
        self.assertEqual([one["MASTER_PORT"] for one in seen[:4]], ["2001", "2002", "2003", "2004"])
        self.assertEqual(seen[0]["SOFTRNIC_FABRIC"], f"ab-{os.getuid()}-2000-01A")
        self.assertEqual(seen[1]["NCCL_HOSTID"], "rank1")
        # The ranks meet by themselves, not where torchrun's agents do.
        self.assertNotIn("TORCHELASTIC_USE_AGENT_STORE", seen[0])


class Interruption(unittest.TestCase):
    def test_no_process_is_left(self):
        code, told, _ = self.interrupt(signal.SIGINT, "hang")
        self.assertEqual(code, ending.INTERRUPTED)
        self.assertIn("interrupted: 0 of 16 runs were done, too few for a report; no process of this run is left", told)

    def test_what_was_done_is_reported(self):
        code, told, report = self.interrupt(signal.SIGTERM, "hang-later")
        self.assertEqual(code, ending.INTERRUPTED)
        self.assertRegex(told, r"interrupted: 5 of 16 runs were done; .*/report.md has the first 4; no process")
        self.assertIn("The run was interrupted: 5 of 16 runs were done, and this report has the first 4.", report)

    def interrupt(self, number: signal.Signals, mood: str) -> tuple[int, str, str]:
        """Once ranks hang: exit code, standard error, and the report."""
        with tempfile.TemporaryDirectory() as folder:
            plugin, hanging = Path(folder) / "p.so", Path(folder) / "hanging"
            plugin.write_bytes(b"x")
            code = (f"import sys; sys.path.insert(0, {str(plays.SCRIPTS)!r})\n"
                    f"from abtest import probe, run; from pathlib import Path; run.WORKER = Path({str(HERE / 'fake_worker.py')!r})\n"
                    f"probe.gpus_of_torch = lambda _: 2\n"
                    f"sys.argv = ['ab.py', '--ranks', '2', '--sizes', '8', '--plugin', {str(plugin)!r}, '--out', {folder + '/out'!r}]\n"
                    f"import ab; sys.exit(ab.main())")
            process = subprocess.Popen([sys.executable, "-c", code], env=plays.environment(FAKE=mood, FAKE_HANGS=str(hanging)),
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=plays.obey_signals)
            self.addCleanup(process.kill)
            # Each rank that hangs leaves a file; both are then waited for, and nothing else runs.
            while len(pids := [path.suffix[1:] for path in Path(folder).glob("hanging.*")]) < 2:
                self.assertIsNone(process.poll(), "it has ended")
                time.sleep(0.01)
            process.send_signal(number)
            _, told = process.communicate(timeout=60)
            self.assertEqual([pid for pid in pids if not plays.is_gone(pid)], [])
            report = Path(folder) / "out/report.md"
            return process.returncode, told, report.read_text() if report.exists() else ""


class Command(unittest.TestCase):
    """The program as a user starts it."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = Path(self.folder.name)
        (self.out / "p.so").write_bytes(b"x")

    def go(self, torch: str) -> subprocess.CompletedProcess:
        """With a module `torch` of this text."""
        (self.out / "torch.py").write_text(torch)
        return plays.run("ab.py", "--ranks", "2", "--plugin", self.out / "p.so", "--out", self.out / "report", PYTHONPATH=self.folder.name)

    def test_without_torch_it_says_so_in_one_line(self):
        for torch, words in [
            ("raise ModuleNotFoundError(\"No module named 'torch'\")", "No module named 'torch'; install it, or name a libnccl.so.2 with --libnccl"),
            ("import types; cuda = types.SimpleNamespace(device_count=lambda: 0)", "PyTorch sees no GPU on this machine"),
        ]:
            done = self.go(torch)
            self.assertEqual((done.returncode, len(done.stderr.splitlines()), done.stdout), (ending.INVALID, 1, ""))
            self.assertIn(words, done.stderr)
            self.assertEqual(list((self.out / "report").iterdir()), [])

    def test_the_help_shows_each_way_to_start_it(self):
        said = plays.run("ab.py", "--help").stdout
        for words in ("torchrun --nnodes 2 --nproc-per-node 8 ", "srun --nodes 2 ", "mpirun -np 16 ",
                      "torchrun --nproc-per-node 2 scripts/ab.py --softrnic", "MASTER_PORT + N", "3: too few", "130: interrupted"):
            self.assertIn(words, said)
        self.assertNotIn("...", re.sub(r"\[.*?\]", "", said.split("options:")[0].split("\n\n", 1)[1]))

    def test_bad_usage(self):
        done = plays.run("ab.py", "--blocks", "0")
        self.assertEqual(done.returncode, ending.INVALID)
        self.assertIn("'0' must be a number from 1 to 20", done.stderr)


class Again(unittest.TestCase):
    """Earlier times, judged once more."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = Path(self.folder.name)

    def raw(self, slower: float, order: str = plan.order(4)) -> Path:
        path = self.out / "raw.json"
        rows = [{"collective": name, "size": size, "bytes": size, "a_us": [10 + size / 1e3 + run % 3 / 100 for run in range(len(order) // 2)],
                 "b_us": [slower * (10 + size / 1e3) + run % 2 / 100 for run in range(len(order) // 2)]}
                for name in ("all_reduce", "send_recv") for size in (8, 1 << 10, 1 << 20, 1 << 30)]
        about = {"order": order, "versions": {"nccl": "2.21.5"}, "ranks": 2, "gdr": "off", "gpus": ["fake"], "command": "x", "dtype": "float32",
                 "variables": {"A": {}, "B": {}, "both": {}}, "plugin": {"sha256": "0"}, "softrnic": None}
        path.write_text(json.dumps({"about": about, "rows": rows}))
        return path

    def go(self, path: Path) -> subprocess.CompletedProcess:
        return plays.run("ab.py", "--again", path, "--out", self.out / "again")

    def test_codes(self):
        for slower, order, code in [(1.0, plan.order(4), 0), (0.8, plan.order(4), 0), (1.3, plan.order(4), 1), (1.3, "ABBAABBA", 3)]:
            self.assertEqual(self.go(self.raw(slower, order)).returncode, code)
        picture = (self.out / "again/report.svg").read_text()
        self.assertIn('stroke="#1b6ca8"', picture)

    def test_the_picture(self):
        self.assertEqual(self.go(self.raw(1.9)).returncode, 1)
        picture = (self.out / "again/report.svg").read_text()
        # Four panels: two columns, each with its sizes and their unit; large enough to be read.
        self.assertEqual(picture.count("size of the message, bytes"), 4)
        width, height = map(int, re.search(r'width="(\d+)" height="(\d+)"', picture).groups())
        self.assertTrue(1000 <= width <= 1400 and height >= 600)
        # Ratios are logarithmic: 2 and 0.5 are as far from 1.
        panel = picture[picture.index("time B/A"):]
        at = {mark: float(re.search(rf'y="([\d.]+)" text-anchor="end">{re.escape(mark)}<', panel).group(1)) for mark in ("0.8", "1", "1.25")}
        self.assertAlmostEqual(at["0.8"] - at["1"], at["1"] - at["1.25"], delta=1.0)

    def test_what_is_no_raw_json(self):
        for text, words in [("{}", "no raw.json of ab.py"), ("x", "no raw.json of ab.py")]:
            (self.out / "raw.json").write_text(text)
            done = self.go(self.out / "raw.json")
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)
        raw = json.loads(self.raw(1.0).read_text())
        raw["rows"][0]["a_us"][0] = 0
        for rows, words in [([], "no rows"), (raw["rows"], "a time of 0.0 us")]:
            (self.out / "raw.json").write_text(json.dumps({**raw, "rows": rows}))
            done = self.go(self.out / "raw.json")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)
        self.assertIn("No such file", self.go(self.out / "none.json").stderr)
        self.assertIn("not made of blocks", self.go(self.raw(1.0, "ABAB" + "AABA")).stderr)

    def test_what_nobody_thought_of_is_not_worse(self):
        with mock.patch("sys.stderr", new_callable=io.StringIO) as said:
            self.assertEqual(ending.exit_code(lambda: {}["x"]), ending.INVALID)
        self.assertEqual(said.getvalue().splitlines()[-1], "not valid: KeyError('x')")

    def test_a_result_that_cannot_be_told(self):
        command = [sys.executable, plays.SCRIPTS / "ab.py", "--again", self.raw(1.0), "--out", self.out / "again"]
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, env=plays.environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (ending.INVALID, 1), done.stderr)
        self.assertIn("could not be told: [Errno 28]", done.stderr)
        self.assertIn("alike", (self.out / "again/report.md").read_text())

    def test_a_report_that_cannot_be_written_at_the_end(self):
        raw = json.loads(self.raw(1.3).read_text())
        with mock.patch("builtins.print") as said, self.assertRaisesRegex(plan.Invalid, "the report was not written to /proc"):
            keys = [(row["collective"], row["size"], row["bytes"]) for row in raw["rows"]]
            times = [conclude.in_order(raw["about"]["order"], row["a_us"], row["b_us"]) for row in raw["rows"]]
            conclude.conclude(Path("/proc/none"), raw["about"], keys, times, 0.1)
        self.assertIn("worse in 8", str(said.call_args_list))



if __name__ == "__main__":
    unittest.main()
