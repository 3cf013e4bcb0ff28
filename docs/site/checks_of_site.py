"""Whether a built site works by itself: every file and place that its pages name is in it, and nothing is elsewhere.

mkdocs checks the links of Markdown; here it is what came out: frames, scripts, pictures and links in HTML of ours too.
Links that a reader follows may lead elsewhere, what a page loads may not. Knows HTML, and no mkdocs.
"""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}


class _Page(HTMLParser):
    """What a page loads, where it leads, and which places it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.places: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect from one tag."""
        found = {name: value or "" for name, value in attrs}
        self.places.update(value for name, value in found.items() if name in ("id", "name"))
        if tag in LOADED and found.get(LOADED[tag]):
            self.loads.append(found[LOADED[tag]])
        elif tag == "link" and found.get("href"):
            (self.leads if found.get("rel") in ("next", "prev", "canonical") else self.loads).append(found["href"])
        elif tag == "a" and found.get("href"):
            self.leads.append(found["href"])


def faults(site: Path) -> list[str]:
    """A line for everything that is not there, or is loaded from elsewhere."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        if name == "404.html":  # served at any address, so that its links cannot be relative
            continue
        found += [f"{name} loads {link}" for link in page.loads if urlsplit(link).netloc]
        for link in (*page.loads, *page.leads):
            parts = urlsplit(link)
            if parts.netloc or parts.scheme in ("data", "mailto", "javascript"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{name} names {link}, which is not there")
            elif target in pages and unquote(parts.fragment) not in pages[target].places:
                found.append(f"{name} names {link}, a place that {target.relative_to(site)} does not have")
    return found
