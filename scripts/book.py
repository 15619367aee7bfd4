#!/usr/bin/env python3
"""Builds a site of this repository's pages with mdBook, and checks its links.

    python scripts/book.py              # in target/site

The chapters are those of docs/SUMMARY.md. What they link to is in the site too: pages as chapters, other files as they are.

Exit code 0: the site is there, and all links within it lead somewhere. 1: some do not. 2: it could not be built.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nccl_net_ferrite import exit_codes, repository
from nccl_net_ferrite.exit_codes import Invalid

# -- whether the links of a site lead somewhere --


class Page(HTMLParser):
    """The places of a page, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.targets: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("id", "name"):
                self.places.add(value)
            elif value and (name == "src" or (name == "href" and tag == "a")):
                self.targets.append(value)


def broken_links(site: Path) -> list[str]:
    """The links to a file or to a place in a page that is not there: "page: link"."""
    pages = {file.resolve(): Page(file.read_text()) for file in sorted(site.rglob("*.html"))}
    found = []
    for file, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            place = unquote(parts.fragment)
            if not there.is_file() or (place and there in pages and place not in pages[there].places):
                found.append(f"{file.relative_to(site.resolve())}: {target}")
    return found


# -- which files of the repository a site of its pages has --

# The chapters, in their order.
SUMMARY = Path("docs/SUMMARY.md")
LINK = re.compile(r"\]\(([^)#\s]+)")


def links_of(root: Path, page: Path) -> list[Path]:
    """The files that a page links to, from the root of the repository, in the order of the page."""
    found = []
    for target in LINK.findall((root / page).read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        there = (root / page.parent / target).resolve()
        if not there.is_relative_to(root) or not there.is_file():
            raise Invalid(f"{page}: a link to {target}, which is no file of the repository")
        found.append(there.relative_to(root))
    return found


def reachable(root: Path) -> list[Path]:
    """The chapters, and all files that these link to, and so on; chapters first, each once."""
    found = dict.fromkeys(links_of(root, SUMMARY))
    waiting = list(found)
    while waiting:
        page = waiting.pop(0)
        if page.suffix == ".md":
            new = [file for file in links_of(root, page) if file not in found]
            found.update(dict.fromkeys(new))
            waiting += new
    return list(found)


def summary_of(root: Path) -> str:
    """The list of chapters as it is at the root of the site, with the pages that only other pages link to at its end."""
    chapters = links_of(root, SUMMARY)
    lines = [(root / SUMMARY).read_text().replace("](", "](docs/").replace("](docs/../", "]("), "\n# Reports\n"]
    for page in reachable(root):
        if page.suffix == ".md" and page not in chapters:
            lines.append(f"- [{page.parent.parent.name}, {page.parent.name}]({page})")
    return "\n".join(lines) + "\n"


# Without the default preprocessors each page keeps its name, README.md too.
BOOK = """
[book]
title = "Ferrite"
language = "en"
src = "src"
[build]
use-default-preprocessors = false
[output.html]
no-section-label = true
[output.html.search]
enable = false
"""


# In each folder that this program has made.
MARK = ".made-by-book.py"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mdbook", default="mdbook", metavar="FILE", help="the program mdbook; default: that of PATH")
    parser.add_argument("--out", type=Path, default=repository.ROOT / "target/site", help="the folder of the site, which is replaced")
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    return exit_codes.of_program(lambda: run(chosen.mdbook, chosen.out))


def run(mdbook: str, out: Path) -> int:
    program = shutil.which(mdbook)
    if not program:
        raise Invalid(f"--mdbook {mdbook}: there is no such program; cargo install mdbook makes it")
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / MARK).is_file())):
        raise Invalid(f"--out {out}: no folder that this program has made; name one that is empty or not there yet")
    root = repository.ROOT
    if not (root / SUMMARY).is_file():
        raise Invalid(f"{root / SUMMARY} is missing: the site is built in a checkout of the repository")
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder)
        (book / "book.toml").write_text(BOOK)
        for file in reachable(root):
            copy = book / "src" / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / file, copy)
        (book / "src/SUMMARY.md").write_text(summary_of(root))
        done = subprocess.run([program, "build", "--dest-dir", str(book / "html"), str(book)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Invalid(f"{mdbook}: exit status {done.returncode}: {done.stderr.strip()}")
        if out.exists():
            shutil.rmtree(out)
        shutil.copytree(book / "html", out)
        (out / MARK).touch()
    broken = broken_links(out)
    for link in broken:
        print(link)
    print(f"{len(list(out.rglob('*.html')))} pages, {len(broken)} broken links: {out / 'index.html'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
