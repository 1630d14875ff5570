"""Checks the built pages: every picture, style and link within them leads to a file, each anchor to a place in it."""

import functools
import html.parser
import pathlib
import sys
import urllib.parse

Links = set[str]


class Page(html.parser.HTMLParser):
    """What a page links to, and the places in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: Links = set()
        self.anchors: Links = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes the links and the anchors of one element."""
        for name, value in attrs:
            if value and name in ("id", "name"):
                self.anchors.add(value)
            elif value and (name == "src" or (name == "href" and tag in ("a", "link"))):
                self.links.add(value)


@functools.cache
def read(path: pathlib.Path) -> Page:
    """Answers what is in a page."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def fault(path: pathlib.Path, link: str) -> str | None:
    """Answers what is wrong with a link of a page; None if nothing is, or if it leads elsewhere."""
    parts = urllib.parse.urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return f"{path}: {link} leads nowhere"
    if parts.fragment and target.suffix == ".html" and urllib.parse.unquote(parts.fragment) not in read(target).anchors:
        return f"{path}: {link} has no such place"
    return None


def main(folder: str) -> int:
    """Prints what is wrong, and answers how much."""
    pages = sorted(pathlib.Path(folder).resolve().rglob("*.html"))
    faults = [said for path in pages for link in sorted(read(path).links) if (said := fault(path, link))]
    print("\n".join(faults) or f"{len(pages)} pages, and every link within them leads somewhere")
    return len(faults)


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1]) else 0)
