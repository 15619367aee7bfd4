"""Tests of scripts/ab.py --again, and of reports that were made earlier."""

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

from nccl_net_ferrite import exit_codes
from nccl_net_ferrite.ab import judgement, plan
from nccl_net_ferrite.errors import Invalid

from . import fixtures
from .fixtures import found


class Again(fixtures.InFolder):
    """Earlier times, judged once more."""

    def raw(self, slower: float, order: str = plan.order(4)) -> Path:
        path = self.out / "raw.json"
        rows = [
            {
                "collective": name,
                "size": size,
                "bytes": size,
                "a_us": [10 + size / 1e3 + run % 3 / 100 for run in range(len(order) // 2)],
                "b_us": [slower * (10 + size / 1e3) + run % 2 / 100 for run in range(len(order) // 2)],
            }
            for name in ("all_reduce", "send_recv")
            for size in (8, 1 << 10, 1 << 20, 1 << 30)
        ]
        about = {
            "order": order,
            "versions": {"nccl": "2.21.5"},
            "ranks": 2,
            "gdr": "off",
            "gpus": ["fake"],
            "command": "x",
            "dtype": "float32",
            "variables": {"A": {}, "B": {}, "both": {}},
            "plugin": {"path": "p.so", "sha256": "0"},
            "softrnic": None,
            "evidence": [],
        }
        path.write_text(json.dumps({"about": about, "rows": rows}))
        return path

    def judge(self, path: Path) -> "subprocess.CompletedProcess[str]":
        return fixtures.run("ab.py", "--again", path, "--out", self.out / "again")

    def test_codes(self) -> None:
        for slower, order, code in [
            (1.0, plan.order(4), 0),
            (0.8, plan.order(4), 0),
            (1.3, plan.order(4), 1),
            (1.3, "ABBAABBA", 3),
        ]:
            self.assertEqual(self.judge(self.raw(slower, order)).returncode, code)
        picture = (self.out / "again/report.svg").read_text()
        self.assertIn('stroke="#1b6ca8"', picture)

    def test_the_picture(self) -> None:
        self.assertEqual(self.judge(self.raw(1.9)).returncode, 1)
        picture = (self.out / "again/report.svg").read_text()
        # Four panels: two columns, each with its sizes and their unit; large enough to be read.
        self.assertEqual(picture.count("size of the message, bytes"), 4)
        width, height = map(int, found(r'width="(\d+)" height="(\d+)"', picture))
        self.assertTrue(1000 <= width <= 1400 and height >= 600)
        # Ratios are logarithmic: 2 and 0.5 are as far from 1.
        panel = picture[picture.index("time B/A") :]
        at = {}
        for mark in ("0.8", "1", "1.25"):
            [y] = found(rf'y="([\d.]+)" text-anchor="end">{re.escape(mark)}<', panel)
            at[mark] = float(y)
        self.assertAlmostEqual(at["0.8"] - at["1"], at["1"] - at["1.25"], delta=1.0)

    def test_a_report_judged_again_is_the_same(self) -> None:
        self.assertEqual(self.judge(self.raw(1.3)).returncode, 1)
        first = {file: (self.out / "again" / file).read_bytes() for file in ("report.md", "report.svg", "raw.json")}
        (self.out / "again/raw.json").rename(self.out / "earlier.json")
        self.assertEqual(self.judge(self.out / "earlier.json").returncode, 1)
        for file, content in first.items():
            self.assertEqual((self.out / "again" / file).read_bytes(), content, file)

    def test_what_is_no_raw_json(self) -> None:
        for text, words in [("{}", "no raw.json of ab.py"), ("x", "no raw.json of ab.py")]:
            (self.out / "raw.json").write_text(text)
            done = self.judge(self.out / "raw.json")
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)
        raw = json.loads(self.raw(1.0).read_text())
        raw["rows"][0]["a_us"][0] = 0
        for rows, words in [([], "no rows"), (raw["rows"], "a time of 0.0 us")]:
            (self.out / "raw.json").write_text(json.dumps({**raw, "rows": rows}))
            done = self.judge(self.out / "raw.json")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)
        self.assertIn("No such file", self.judge(self.out / "none.json").stderr)
        self.assertIn("not made of blocks", self.judge(self.raw(1.0, "ABAB" + "AABA")).stderr)

    def test_what_nobody_thought_of_is_not_worse(self) -> None:
        with mock.patch("sys.stderr", new_callable=io.StringIO) as said:
            nothing: dict[str, int] = {}
            self.assertEqual(exit_codes.of_program(lambda: nothing["x"]), exit_codes.INVALID)
        self.assertEqual(said.getvalue().splitlines()[-1], "not valid: KeyError('x')")

    def test_a_result_that_cannot_be_told(self) -> None:
        command: list[str | Path] = [sys.executable, fixtures.SCRIPTS / "ab.py", "--again", self.raw(1.0), "--out", self.out / "again"]
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, env=fixtures.environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (exit_codes.INVALID, 1), done.stderr)
        self.assertIn("could not be told: [Errno 28]", done.stderr)
        self.assertIn("alike", (self.out / "again/report.md").read_text())

    def test_a_report_that_cannot_be_written_at_the_end(self) -> None:
        raw = json.loads(self.raw(1.3).read_text())
        with mock.patch("builtins.print") as said, self.assertRaisesRegex(Invalid, "the report was not written to /proc"):
            about, keys, times = judgement.of_raw(raw)
            judgement.judge_and_report(Path("/proc/none"), replace(about, effect=0.1), keys, times)
        self.assertIn("worse in 8", str(said.call_args_list))
