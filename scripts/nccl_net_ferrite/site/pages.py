"""Which files of the repository a site of its pages has."""

import re
from pathlib import Path

from ..errors import Invalid

# The chapters, in their order.
SUMMARY = Path("docs/SUMMARY.md")
LINK = re.compile(r"\]\(([^)#\s]+)")


def links(root: Path, page: Path) -> list[Path]:
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
    found = dict.fromkeys(links(root, SUMMARY))
    waiting = list(found)
    while waiting:
        page = waiting.pop(0)
        if page.suffix == ".md":
            new = [file for file in links(root, page) if file not in found]
            found.update(dict.fromkeys(new))
            waiting += new
    return list(found)


def summary(root: Path) -> str:
    """The list of chapters as it is at the root of the site, with the pages that only other pages link to at its end."""
    chapters = links(root, SUMMARY)
    lines = [(root / SUMMARY).read_text().replace("](", "](docs/").replace("](docs/../", "]("), "\n# Reports\n"]
    for page in reachable(root):
        if page.suffix == ".md" and page not in chapters:
            lines.append(f"- [{page.parent.parent.name}, {page.parent.name}]({page})")
    return "\n".join(lines) + "\n"
