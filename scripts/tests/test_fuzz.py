"""scripts/fuzz.py: how inputs are kept, and what it is told."""

import argparse
import subprocess
import unittest

import fuzz


class Inputs(unittest.TestCase):
    def test_inputs_are_kept_as_they_are_and_in_one_order(self) -> None:
        inputs = [b"", b"\x00\xff", b"a" * 300, b"\x00"]
        self.assertEqual(fuzz.unpacked(fuzz.packed(inputs)), sorted(inputs, key=len))
        self.assertEqual(fuzz.packed(inputs), fuzz.packed(inputs[::-1]))

    def test_the_targets_are_those_of_the_code(self) -> None:
        listed = ""
        for name in ("src/proto/fuzz.rs", "tools/ferrite/src/fuzz/mod.rs"):
            code = (fuzz.ROOT / name).read_text()
            start = code.index("pub const TARGETS")
            listed += code[start : code.index("];", start)]
        self.assertEqual([name for name in fuzz.TARGETS if f'("{name}", ' not in listed], [])
        self.assertEqual(listed.count('("'), len(fuzz.TARGETS))

    def test_the_lock_file_of_the_fuzzer_is_that_of_its_packages(self) -> None:
        command = ["cargo", "metadata", "--locked", "--offline", "--format-version", "1", "--manifest-path", "tests/fuzz/Cargo.toml"]
        done = subprocess.run(command, cwd=fuzz.ROOT, capture_output=True, text=True, check=False)
        # Before it asks for what has never been fetched, cargo compares the lock file with the packages.
        if done.returncode:
            self.assertIn("failed to download", done.stderr)

    def test_another_target_is_named_with_those_that_there_are(self) -> None:
        with self.assertRaisesRegex(argparse.ArgumentTypeError, "everything: frames, bodies, sender"):
            fuzz.names("frames,everything")


if __name__ == "__main__":
    unittest.main()
