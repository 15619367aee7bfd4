"""scripts/fuzz.py: how inputs are kept, and what it is told."""

import argparse
import json
import re
import subprocess
import unittest

import fuzz


def needed(manifest: str) -> dict[str, set[str]]:
    """What each package of a workspace is built with, without features."""
    command = ["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path", manifest]
    said = subprocess.run(command, cwd=fuzz.ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    packages = json.loads(said)["packages"]
    return {
        one["name"]: {other["name"] for other in one["dependencies"] if other["kind"] != "dev" and not other["optional"]}
        for one in packages
    }


class Inputs(unittest.TestCase):
    def test_inputs_are_kept_as_they_are_and_in_one_order(self) -> None:
        inputs = [b"", b"\x00\xff", b"a" * 300, b"\x00"]
        self.assertEqual(fuzz.unpacked(fuzz.packed(inputs)), sorted(inputs, key=len))
        self.assertEqual(fuzz.packed(inputs), fuzz.packed(inputs[::-1]))

    def test_the_lock_file_of_the_fuzzer_is_that_of_its_packages(self) -> None:
        named = needed("Cargo.toml") | needed("tests/fuzz/Cargo.toml")
        locked = {}
        for entry in (fuzz.ROOT / "tests/fuzz/Cargo.lock").read_text().split("[[package]]\n")[1:]:
            name = re.search('name = "(.+)"', entry)
            # Those of this repository come from no registry.
            if name and "source = " not in entry:
                locked[name[1]] = set(re.findall('^ "([^ "]+)', entry, re.MULTILINE))
        self.assertIn("fuzz", locked)
        self.assertEqual(locked, {name: named[name] for name in locked})

    def test_another_target_is_named_with_those_that_there_are(self) -> None:
        with self.assertRaisesRegex(argparse.ArgumentTypeError, "everything: frames, bodies, sender"):
            fuzz.names("frames,everything")


if __name__ == "__main__":
    unittest.main()
