"""docs/tested-versions.md: each combination names a run that there is, and the run's report says the same versions."""

import re
import unittest
from pathlib import Path

from .fixtures import ROOT

DOCS = ROOT / "docs"
PAGE = (DOCS / "tested-versions.md").read_text()
LINK = re.compile(r"\[[^\]]+\]\(([^)]+)\)")


def rows(text: str) -> list[list[str]]:
    """Of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def together() -> list[list[str]]:
    return rows(PAGE.split("<!-- together -->")[1].split("<!-- end -->")[0])


def facts(report: Path) -> str:
    """The lines of a report that say what ran: with "nccl 2.28.9", "NCCL 2.28.9: sha256", "torch 2.11.0+cu130", the names of GPUs."""
    return "\n".join(line for line in report.read_text().splitlines() if line.startswith("- "))


class Together(unittest.TestCase):
    def test_each_report_says_the_versions_of_its_row(self) -> None:
        seen = 0
        for nccl, torch, _, _, gpu, run in together():
            for target in LINK.findall(run):
                report = DOCS / target
                self.assertTrue(report.is_file(), target)
                said = facts(report)
                self.assertRegex(said, rf"(?im)\bnccl {re.escape(nccl)}(:|$|,| )", target)
                versions = re.findall(r"\btorch (\d+\.\d+\.\d+)", said)
                self.assertEqual(versions, [] if torch == "–" else [torch], target)
                # The folder is the machine; most reports name its GPUs too.
                self.assertTrue(target.split("/")[2].upper().startswith(gpu), target)
                named = re.findall(r"(?m)^- (?:ranks|GPUs): (.*)$", said)
                self.assertTrue(all(gpu in names for names in named), target)
                seen += 1
        self.assertGreaterEqual(seen, 15)

    def test_rows_without_a_report_name_a_test_or_a_script(self) -> None:
        sources = "".join(path.read_text() for path in [*ROOT.glob("tests/**/*.rs"), *ROOT.glob("tools/*/tests/**/*.rs")])
        for row in together():
            if LINK.search(row[-1]):
                continue
            [named, *_] = re.findall(r"`([^`]+)`", row[-1])
            self.assertTrue((ROOT / named).is_file() or f"fn {named}(" in sources, row)

    def test_each_nccl_that_the_page_has_on_gpus_has_a_row_with_a_report(self) -> None:
        first = rows(PAGE.split("\n\n- *Loader*")[0])
        wanted = {row[0] for row in first if row[-1] != "–"}
        self.assertGreaterEqual(len(wanted), 8)
        self.assertEqual({row[0] for row in together() if LINK.search(row[-1])}, wanted)
        # Those whose library is loaded in each run are named by the tests that do it.
        stock = (ROOT / "tests/stock.rs").read_text()
        for row in first:
            if row[3] == "each run":
                self.assertIn(f'"{row[0]}"', stock, row)
