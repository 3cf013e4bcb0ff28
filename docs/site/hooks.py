"""What mkdocs does beside its own work while it builds the site: pages that are generated, and a check of the result.

Knows the order of events and mkdocs' objects. What the generated pages say is in the files beside this one, which know
no mkdocs.
"""

from pathlib import Path
from typing import Any

import checks_of_site
import navigation
import notebooks
import plain
import reference
import replays
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROJECT = {"CONTRIBUTING.md": "project/contributing.md", "CHANGELOG.md": "project/changelog.md"}

_read: dict[str, plain.PlainPage] = {}  # every page of this build, by the path of its source
_order: list[str] = []


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is generated, and put every page in its place."""

    def add(path: str, content: str | bytes) -> None:
        files.append(File.generated(config, path, content=content))

    for path, text in reference.command_pages().items():
        add(path, text)
    for path, text in reference.room_pages(ROOT / "src").items():
        add(path, text)
    for source, path in PROJECT.items():
        add(path, plain.moved((ROOT / source).read_text(encoding="utf-8"), PROJECT))
    for source in sorted((DOCS / "notebooks").glob("*.ipynb")):
        text, pictures = notebooks.as_markdown(source)
        add(f"notebooks/{source.stem}.md", text)
        for name, picture in pictures.items():
            add(f"notebooks/{name}", picture)
    for source in sorted(DOCS.rglob("*.md")):
        for name, page in replays.pages(source.read_text(encoding="utf-8")).items():
            add((source.parent / name).relative_to(DOCS).as_posix(), page)
    pages = [file.src_uri for file in files.documentation_pages()]
    config.nav = navigation.complete(config.nav, pages)
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Remember the order of the pages."""
    _read.clear()
    _order[:] = [page.file.src_uri for page in nav.pages]
    return nav


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put replays into the page, and keep the page as it is without them."""
    section = page.ancestors[-1].title if page.ancestors else config.site_name
    _read[page.file.src_uri] = plain.PlainPage(str(page.title), section, markdown)
    return replays.landing(replays.embedded(markdown))


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Lay plain Markdown beside every page, and refuse a site that would not work by itself."""
    site = Path(config.site_dir)
    plain.write(site, {name: _read[name] for name in _order}, str(config.site_description))
    if faults := checks_of_site.faults(site):
        raise PluginError("the site is not whole:\n" + "\n".join(faults))
