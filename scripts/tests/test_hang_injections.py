"""The judge of planted faults, and a case of each outcome."""

import json
import subprocess
import sys
import unittest
from dataclasses import replace

import hang_injections
from hang_injections import Case, Report, case_of, is_right
from nccl_net_ferrite import repository

from . import fixtures

KINDS = list(hang_injections.KINDS)


def case(kind: str) -> Case:
    """Ranks 0 to 3 in a ring, on two cards; the victim is rank 1, on card 1."""
    of_kind = case_of(1, 0, 4, [kind], [8])
    return replace(of_kind, ranks=4, devices=2, rings=[[[0, 1, 2, 3]]], victim=1)


def report(verdict: str, *ranks: int, recovery: str = "") -> Report:
    return Report(0, 0.0, verdict, list(ranks), recovery, "")


class Judge(unittest.TestCase):
    def test_the_process_is_named_with_its_verdict(self) -> None:
        for kind, verdict in (("stopped", "PeerSilent"), ("late", "PeerHasNotSent"), ("never called", "PeerHasNotAsked")):
            self.assertTrue(is_right(case(kind), report(verdict, 1)), kind)
            self.assertFalse(is_right(case(kind), report(verdict, 2)), kind)
            self.assertFalse(is_right(case(kind), report("DataLost", 1)), kind)

    def test_a_path_is_named_by_its_ends_and_the_port_at_the_first_of_them(self) -> None:
        up = "rail 0 (softrnic1): port up at both ends"
        self.assertTrue(is_right(case("one way"), report("Recovering", 1, 2, recovery=up)))
        self.assertFalse(is_right(case("one way"), report("Recovering", 2, 1, recovery=up)), "that end has the other port")
        self.assertFalse(is_right(case("one way"), report("Recovering", 1, 3, recovery=up)), "no connection")
        self.assertFalse(is_right(case("one way"), report("Recovering", 1, 2)))

    def test_a_card_is_named_by_the_end_that_cannot_use_its_port(self) -> None:
        def says(rank: int, who: str) -> str:
            return f"rail 0 (softrnic{rank % 2}): {who} cannot use its port"

        self.assertTrue(is_right(case("card"), report("Recovering", 1, 2, recovery=says(1, "this end"))))
        self.assertTrue(is_right(case("card"), report("Recovering", 2, 3, recovery=says(2, "the peer"))))
        self.assertFalse(is_right(case("card"), report("Recovering", 2, 3, recovery=says(2, "this end"))))

    def test_each_kind_comes_as_often_as_it_is_to_be(self) -> None:
        found = [case_of(7, number, 4, KINDS, [8]).kind for number in range(20)]
        self.assertEqual({kind: found.count(kind) for kind in KINDS}, {kind: often for kind, (_, often) in hang_injections.KINDS.items()})


class Cases(fixtures.InFolder):
    @fixtures.needs_ferrite
    def test_a_process_that_never_calls_is_found_and_a_busy_job_is_none(self) -> None:
        options = ["--cases", "2", "--most", "8", "--parallel", "2", "--kinds", "never called,busy", "--dist", str(repository.DIST)]
        command = [sys.executable, "hang_injections.py", *options, "--out", str(self.out)]
        done = subprocess.run(command, cwd=fixtures.SCRIPTS, capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = {one["case"]["kind"]: one["located"] for one in json.loads((self.out / "results.json").read_text())}
        self.assertEqual(found, {"never called": True, "busy": False})
