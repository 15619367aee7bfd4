"""Each command of a shell script that a page shows is one of the forms that the script's own head tells."""

import re
import shlex
import unittest

from .fixtures import ROOT
from .test_documented import pages

SCRIPT = r"(?:scripts|tests/rxe|softrnic/scripts|lab/scripts)/[\w-]+\.sh"
CALL = re.compile(rf"({SCRIPT})((?: [^|`>;&]*|'[^']*')*)$")
PLACE = re.compile(r"[A-Z][A-Z_]*")


def forms(script: str) -> list[str]:
    """What the script's head shows of its arguments, such as "[--dry-run] VERSION"; "" if it takes none."""
    lines = re.findall(rf"^#   {re.escape(script)}((?: \S+)*)", (ROOT / script).read_text(), re.MULTILINE)
    return [line.strip() for line in lines]


def pattern(form: str) -> str:
    """Of arguments with a space before each. What is in brackets may be left out; a word in capitals, or in quotes, stands for any word."""
    found = ""
    for token in re.findall(r"\[|\]|[^\s\[\]]+", re.sub(r"'[^']*'", "QUOTED", form)):
        if token in "[]":
            found += "(?:" if token == "[" else ")?"
            continue
        word = token.removesuffix("...")
        choices = "|".join(map(choice, word.split("|")))
        found += f"(?: (?:{choices}))" + ("+" if token != word else "")
    return found


def choice(word: str) -> str:
    """A word of a form. Of a command that is to be run any word may come, and else no option."""
    if not PLACE.fullmatch(word):
        return re.escape(word)
    return r"\S+" if word in ("COMMAND", "ARGUMENT", "QUOTED") else r"[^-\s]\S*"


def is_known(script: str, arguments: list[str]) -> bool:
    given = "".join(" " + (re.sub(r"\s", "_", word) or "_") for word in arguments)
    return any(re.fullmatch(pattern(form), given) for form in forms(script))


def commands() -> list[tuple[str, bool, str, list[str]]]:
    """The place, whether it is a line of its own, the script and its arguments; of blocks of code, and between backticks."""
    found = []
    for page in pages():
        for number, line in enumerate(page.read_text().splitlines(), 1):
            is_line = line.startswith("    ")
            for text in [line.strip()] if is_line else re.findall(r"`([^`]+)`", line):
                match = CALL.search(re.sub(r"\s+#.*|\\$", "", text).strip())
                if match:
                    place = f"{page.relative_to(ROOT)}:{number}"
                    found.append((place, is_line, match[1], shlex.split(match[2])))
    return found


class Usage(unittest.TestCase):
    def test_each_command_that_a_page_shows_is_one_of_the_scripts(self) -> None:
        found = commands()
        self.assertTrue(
            {"scripts/release.sh", "scripts/two_nodes.sh", "scripts/package.sh", "tests/rxe/run.sh"} <= {one[2] for one in found}
        )
        for place, is_line, script, arguments in found:
            # In a sentence a script may be spoken of without what it has to have.
            if arguments or is_line:
                self.assertTrue(is_known(script, arguments), f"{place}: {script} {arguments}: its head has {forms(script)}")

    def test_what_a_script_does_not_take_is_noticed(self) -> None:
        for arguments in (["--dry-run", "0.1.0"], ["0.1.0"], ["--dry-run", "--without", "aarch64", "0.1.0"]):
            self.assertTrue(is_known("scripts/release.sh", arguments), arguments)
        for arguments in ([], ["--dry-run"], ["--without", "x86_64", "0.1.0"], ["0.1.0", "more"]):
            self.assertFalse(is_known("scripts/release.sh", arguments), arguments)
        self.assertTrue(is_known("scripts/two_nodes.sh", ["mpirun", "x", "-y"]))
        self.assertFalse(is_known("scripts/two_nodes.sh", ["pdsh", "x"]))
        self.assertTrue(is_known("scripts/test.sh", []))
        self.assertFalse(is_known("scripts/test.sh", ["--slow"]))
