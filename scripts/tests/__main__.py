"""Runs the tests, each class of them in a process of its own, side by side.

    cd scripts && python3 -m tests [--junit FILE] [--jobs N] [--but MODULE] [NAME...]

NAME is a file, a class or a test as unittest names it, such as tests.test_ab or tests.test_ab.Comparison. FILE gets the results as
JUnit XML, which scripts/summary.py adds up. Without a NAME all tests run, but those of MODULE, such as tests.test_package. Exit code 1:
a test failed.
"""

import argparse
import os
import sys
import time
import unittest
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest import TestCase, TestSuite

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Result:
    """Of one test."""

    name: str
    seconds: float
    failure: str  # "" if it did not fail
    skipped: str  # why it did not run; "" if it did


class Recorder(unittest.TestResult):
    """Collects the results of tests."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = 0.0
        self.seconds: dict[str, float] = {}

    def startTest(self, test: TestCase) -> None:
        super().startTest(test)
        self.begin = time.monotonic()

    def stopTest(self, test: TestCase) -> None:
        super().stopTest(test)
        self.seconds[test.id()] = time.monotonic() - self.begin

    def results(self) -> list[Result]:
        failures: dict[str, str] = {}
        for test, text in [*self.failures, *self.errors]:
            # A subtest belongs to its test. What fails before a class begins has a name of its own.
            name = getattr(test, "test_case", test).id()
            failures[name] = f"{failures.get(name, '')}{test}\n{text}"
        skipped = {test.id(): reason for test, reason in self.skipped}
        names = dict.fromkeys([*self.seconds, *failures])
        return [Result(name, self.seconds.get(name, 0.0), failures.get(name, ""), skipped.get(name, "")) for name in names]


def run_suite(name: str) -> list[Result]:
    recorder = Recorder()
    unittest.defaultTestLoader.loadTestsFromName(name).run(recorder)
    return recorder.results()


def tests_in(suite: TestSuite | TestCase) -> Iterator[TestCase]:
    if isinstance(suite, TestCase):
        yield suite
    else:
        for one in suite:
            yield from tests_in(one)


def modules() -> list[str]:
    return [f"tests.{path.stem}" for path in sorted(HERE.glob("test_*.py"))]


def classes(files: list[str]) -> list[str]:
    """Of these modules."""
    found = tests_in(unittest.defaultTestLoader.loadTestsFromNames(files))
    # A file that cannot be imported is a test that fails, without a class of its own.
    return list(dict.fromkeys(one.id() if type(one).__module__ == "unittest.loader" else one.id().rpartition(".")[0] for one in found))


def junit(results: list[Result]) -> ElementTree.ElementTree:
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", name="python")
    for one in results:
        classname, _, name = one.name.rpartition(".")
        case = ElementTree.SubElement(suite, "testcase", classname=classname, name=name, time=f"{one.seconds:.3f}")
        if one.failure:
            ElementTree.SubElement(case, "failure").text = one.failure
        if one.skipped:
            ElementTree.SubElement(case, "system-out").text = f"skipped: {one.skipped}"
    return ElementTree.ElementTree(root)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="tests to run; default: all")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the results to FILE")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes; default: one for each CPU")
    parser.add_argument("--but", choices=modules(), metavar="MODULE", help="leave out the tests of a module")
    options = parser.parse_args()
    begin = time.monotonic()
    with ProcessPoolExecutor(options.jobs) as pool:
        results = [
            result
            for found in pool.map(run_suite, options.names or classes([name for name in modules() if name != options.but]))
            for result in found
        ]
    failed = [one for one in results if one.failure]
    for one in failed:
        print(f"FAIL {one.name}\n{one.failure}")
    skipped = sum(bool(one.skipped) for one in results)
    print(f"Python: {len(results)} tests, {len(failed)} failed, {skipped} skipped, {time.monotonic() - begin:.1f} s")
    if options.junit:
        options.junit.parent.mkdir(parents=True, exist_ok=True)
        junit(results).write(options.junit, encoding="unicode")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
