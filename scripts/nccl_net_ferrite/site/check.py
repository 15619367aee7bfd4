"""Whether the links of a site lead somewhere."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


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


def broken(site: Path) -> list[str]:
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
