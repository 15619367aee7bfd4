"""A short form of scripts/connections.py: what a hundred connections take of the cards, and what they do when a port is down."""

import os
import unittest
from pathlib import Path

import connections

from . import fixtures

DIST = Path(os.environ.get("FERRITE_DIST") or fixtures.ROOT / "dist").resolve()


@unittest.skipUnless((DIST / "bin/ferrite").exists(), f"nothing is built in {DIST}")
class Connections(unittest.TestCase):
    def run_of(self, count: int, *words: str) -> connections.Run:
        found = connections.run(DIST, connections.FERRITE, count, *words)
        assert isinstance(found, connections.Run), found
        return found

    def test_commands_that_a_hundred_connections_take_of_the_cards(self) -> None:
        run = self.run_of(100)
        # A queue pair with its completion queue, and its three changes of state.
        least = {"create_cq": 1, "create_qp": 1, "modify_qp": 3}
        sending, receiving = run.commands(0), run.commands(1)
        self.assertLess(sending.pop("register_mr"), 0.2, "rings are registered together")
        self.assertLess(receiving.pop("register_mr", 0), 0.2)
        for end in (sending, receiving):
            self.assertLess(end.pop("alloc_td"), 0.6, "two thread domains share a page of the card")
        self.assertEqual((sending, receiving), (least, least))

    def test_all_connections_resume_when_their_port_is_back_and_the_log_has_a_line_for_all(self) -> None:
        rule = connections.FAULTS["port down for 100 ms"]
        run = self.run_of(100, "--both-ways", "--traffic-ms", "2500", "--fault-at-ms", "100", "--fault", rule)
        self.assertGreater(len(run.rounds()), 2)
        for end in run.ends:
            self.assertLess(end["lines"], 10)
            again = end["commands"][1]
            self.assertLess(2 * again.get("create_cq", 0), again["create_qp"], "the completion queues are used again")


if __name__ == "__main__":
    unittest.main()
