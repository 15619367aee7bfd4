"""Builds a site of this repository's pages with mdBook, and checks its links.

    python scripts/site.py              # in target/site

The chapters are those of docs/SUMMARY.md. What they link to is in the site too: pages as chapters, other files as they are.

Exit code 0: the site is there, and all links within it lead somewhere. 1: some do not. 2: it could not be built.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from .. import exit_codes, repository
from ..errors import Invalid
from . import check, pages

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
MARK = ".made-by-site.py"


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
    if not (root / pages.SUMMARY).is_file():
        raise Invalid(f"{root / pages.SUMMARY} is missing: the site is built in a checkout of the repository")
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder)
        (book / "book.toml").write_text(BOOK)
        for file in pages.reachable(root):
            copy = book / "src" / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / file, copy)
        (book / "src/SUMMARY.md").write_text(pages.summary(root))
        done = subprocess.run([program, "build", "--dest-dir", str(book / "html"), str(book)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Invalid(f"{mdbook}: exit status {done.returncode}: {done.stderr.strip()}")
        if out.exists():
            shutil.rmtree(out)
        shutil.copytree(book / "html", out)
        (out / MARK).touch()
    broken = check.broken(out)
    for link in broken:
        print(link)
    print(f"{len(list(out.rglob('*.html')))} pages, {len(broken)} broken links: {out / 'index.html'}")
    return 1 if broken else 0
