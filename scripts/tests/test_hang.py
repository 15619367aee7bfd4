"""Judging the reports of hangs that were planted."""

import json
import unittest
from typing import Any

from nccl_net_ferrite import files, hang
from nccl_net_ferrite.hang import BEFORE, CASES, Case, Found, cases_of

from . import fixtures

RANKS = [{"pid": 100 + rank, "right": True} for rank in range(3)]


def case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def judge(case: Case, culprit: int, ranks: list[dict[str, Any]], reports: list[dict[str, Any]], nccl: str = "2.21.5") -> Found:
    return hang.judge(case, culprit, ranks, reports, nccl)


def named_report(function: str, number: int, has_begun: bool | None) -> dict[str, Any]:
    one = report(0, 2)
    one["waits"][0]["operation"] = {"function": function, "number": number}
    one["waits"][0]["cause"]["far_has_begun"] = has_begun
    return one


def report(rank: int, cause: int | None, verdict: str = "PeerHasNotSent", likely: int | None = None, number: int = 1) -> dict[str, Any]:
    far = {"verdict": verdict, "far": {"rank": None, "rank_in_job": cause}} if cause is not None else None
    lead = {"who": {"rank": likely, "rank_in_job": None}, "lead": -3} if likely is not None else None
    return {"pid": 100 + rank, "number": number, "text": f"text of {rank}", "waits": [{"cause": far}], "least_lead": lead}


class JudgementTest(unittest.TestCase):
    def test_reports_that_name_the_culprit_are_right(self) -> None:
        found = judge(case("absent"), 2, RANKS, [report(0, 2), report(1, 2, "PeerHasNotAsked")])
        self.assertEqual((found.wrong, found.named), ([], {0: 2, 1: 2}))
        self.assertEqual(found.texts, {0: "text of 0", 1: "text of 1"})

    def test_the_first_report_of_a_rank_counts(self) -> None:
        reports = [report(0, 2, number=2), report(0, 1, number=1)]
        self.assertEqual(judge(case("absent"), 2, RANKS, reports).wrong, ["rank 0 names rank 1, and rank 2 was held up"])

    def test_another_verdict_is_wrong(self) -> None:
        wrong = judge(case("stopped"), 2, RANKS, [report(0, 2)]).wrong
        self.assertEqual(wrong, ["rank 0 has the verdict PeerHasNotSent, and not PeerSilent"])

    def test_the_most_likely_rank_will_do_for_a_gpu(self) -> None:
        self.assertEqual(judge(case("gpu"), 2, RANKS, [report(0, None, likely=2)]).wrong, [])
        self.assertEqual(len(judge(case("gpu"), 2, RANKS, [report(0, None, likely=1)]).wrong), 1)

    def test_no_report_where_one_is_due_and_one_where_none_is_due(self) -> None:
        self.assertEqual(judge(case("gpu"), 2, RANKS, []).wrong, ["nobody has reported a wait"])
        self.assertEqual(len(judge(case("late"), 2, RANKS, [report(0, 2)]).wrong), 1)
        self.assertEqual(judge(case("late"), 2, RANKS, []).wrong, [])

    def test_wrong_sums_and_a_report_of_the_culprit_are_reported(self) -> None:
        ranks = [{**RANKS[0], "right": False}, *RANKS[1:]]
        wrong = judge(case("absent"), 2, ranks, [report(2, 1)]).wrong
        self.assertEqual(wrong, ["rank 0 has wrong sums", "rank 2 was held up and has reported a wait"])

    def test_the_operation_is_looked_at_where_nccl_tells_it(self) -> None:
        def wrong(name: str, one: dict[str, Any], nccl: str = "2.28.9") -> int:
            return len(judge(case(name), 2, RANKS, [one], nccl).wrong)

        good = named_report("AllReduce", BEFORE, False)
        self.assertEqual((wrong("absent", good), wrong("absent", report(0, 2)), wrong("absent", report(0, 2), "2.28.1")), (0, 2, 0))
        self.assertEqual(wrong("absent", named_report("AllReduce", BEFORE - 1, False), "2.32.3"), 1)
        self.assertEqual(wrong("absent", named_report("AllGather", BEFORE, None)), 2)
        self.assertEqual([wrong("gpu", named_report("AllReduce", BEFORE, begun)) for begun in (True, None, False)], [0, 0, 1])

    def test_unknown_cases_are_refused_with_the_known_ones(self) -> None:
        self.assertEqual([case.name for case in cases_of("late,gpu")], ["late", "gpu"])
        with self.assertRaisesRegex(ValueError, "'flop' must be one of absent, gpu, stopped, late"):
            cases_of("gpu,flop")


class Written(fixtures.InFolder):
    def test_the_report_names_the_build_of_the_plugin(self) -> None:
        plugin = self.out / "libnccl-net.so"
        plugin.write_bytes(fixtures.library_here())
        hang.write(self.out, files.library(plugin), "the reports are right", {"nccl": "2.28.9"}, [])
        self.assertIn("- plugin: 1.2.3+0123456789ab, sha256 `", (self.out / "report.md").read_text())
        self.assertEqual(json.loads((self.out / "raw.json").read_text())["plugin"]["version"], "1.2.3+0123456789ab")
