"""The site of the pages: what is in it, and whether its links lead somewhere."""

import os
import sys

import book
from nccl_net_ferrite import repository
from nccl_net_ferrite.exit_codes import Invalid

from . import fixtures

# Makes an HTML file of each chapter with its links, as mdBook names them, and copies nothing else.
FAKE_MDBOOK = """
import pathlib, re, shutil, sys
out, book = map(pathlib.Path, sys.argv[3:5])
summary = (book / "src/SUMMARY.md").read_text()
for name in re.findall(r"\\]\\(([^)]+)\\)", summary):
    text = (book / "src" / name).read_text()
    links = re.findall(r"\\]\\(([^)\\s]+)\\)", text)
    html = "".join(f'<a href="{link.replace(".md", ".html")}">x</a>' for link in links if "#" not in link)
    file = (out / name).with_suffix(".html")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(html + BROKEN)
for file in (book / "src").rglob("*"):
    if file.is_file() and file.suffix != ".md":
        copy = out / file.relative_to(book / "src")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
(out / "index.html").write_text("")
"""


class Pages(fixtures.InFolder):
    def setUp(self) -> None:
        super().setUp()
        self.root = self.out.resolve()
        self.write("docs/SUMMARY.md", "# S\n\n[Top](../README.md)\n\n- [A](a.md)\n")
        self.write("README.md", "[a](docs/a.md#place) [web](https://example.org/x.md)")
        self.write("docs/a.md", "[r](../results/one/report.md)")
        self.write("results/one/report.md", "![picture](p.svg)")
        self.write("results/one/p.svg", "<svg/>")

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def test_what_is_linked_to_is_in_the_site(self) -> None:
        found = [str(file) for file in book.reachable(self.root)]
        self.assertEqual(found, ["README.md", "docs/a.md", "results/one/report.md", "results/one/p.svg"])
        summary = book.summary_of(self.root)
        self.assertIn("[Top](README.md)\n\n- [A](docs/a.md)\n", summary)
        self.assertIn("- [results, one](results/one/report.md)\n", summary)

    def test_a_link_to_nothing_or_out_of_the_repository_is_named(self) -> None:
        for target in ("none.md", "../../x", ".."):
            self.write("docs/a.md", f"[r]({target})")
            with self.assertRaisesRegex(Invalid, f"docs/a.md: a link to {target}, which is no file"):
                book.reachable(self.root)

    def test_links_and_places_that_are_not_there_are_found(self) -> None:
        self.write("site/a.html", '<h2 id="place">x</h2><a href="b.html#one">b</a><a href="#place">p</a><img src="p.svg">')
        self.write(
            "site/b.html", '<a id="one"></a><a href="a.html#none">a</a><a href="https://example.org">w</a><a href="c%20d.html">c</a>'
        )
        self.assertEqual(book.broken_links(self.root / "site"), ["a.html: p.svg", "b.html: a.html#none", "b.html: c%20d.html"])
        self.write("site/p.svg", "")
        self.write("site/c d.html", "")
        self.assertEqual(book.broken_links(self.root / "site"), ["b.html: a.html#none"])


class Program(fixtures.InFolder):
    def mdbook(self, broken: str = "", text: str = FAKE_MDBOOK) -> list[str]:
        file = self.out / "mdbook"
        file.write_text(f"#!{sys.executable}\nBROKEN = {broken!r}\n{text}")
        os.chmod(file, 0o755)
        return ["--mdbook", str(file), "--out", str(self.out / "site")]

    def test_the_pages_of_this_repository(self) -> None:
        for _ in range(2):
            done = fixtures.run("book.py", *self.mdbook())
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue((self.out / "site/docs/doctor.html").is_file())
        self.assertIn("0 broken links", done.stdout)
        done = fixtures.run("book.py", *self.mdbook('<a href="none.html">x</a>'))
        self.assertEqual(done.returncode, 1)
        self.assertIn("README.html: none.html", done.stdout)

    def test_what_cannot_be_built_is_said(self) -> None:
        (self.out / "other").mkdir()
        (self.out / "other/index.html").touch()
        for arguments, words in [
            (["--mdbook", "/none"], "--mdbook /none: there is no such program"),
            ([*self.mdbook(), "--out", str(self.out / "other")], f"--out {self.out / 'other'}: no folder that this program has made"),
            (self.mdbook(text="import sys; sys.exit('no such theme')"), "exit status 1: no such theme"),
        ]:
            done = fixtures.run("book.py", *arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(words, done.stderr)
        self.assertTrue((repository.ROOT / book.SUMMARY).is_file())
