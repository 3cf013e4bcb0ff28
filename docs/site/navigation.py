"""The navigation of mkdocs.yml made whole: folders and "*" in it become the pages that they stand for."""

from typing import Any

REST = "*"


def complete(nav: Any, pages: list[str]) -> Any:
    """`nav` with each folder ("reference/cli/") and each "*" replaced, by pages of `pages` that it does not name."""
    left = [page for page in pages if page not in set(_named(nav))]
    folders = sorted((entry for entry in _named(nav) if entry.endswith("/")), key=len, reverse=True)
    taken = {folder: [] for folder in folders}
    rest = []
    for page in left:
        home = next((folder for folder in folders if page.startswith(folder)), None)
        (rest if home is None else taken[home]).append(page)
    return _filled(nav, taken | {REST: rest})


def _named(nav: Any) -> list[str]:
    """All words of a navigation, from the top to the bottom."""
    if isinstance(nav, str):
        return [nav]
    return [word for entry in (nav.values() if isinstance(nav, dict) else nav) for word in _named(entry)]


def _filled(nav: Any, pages: dict[str, list[str]]) -> Any:
    if isinstance(nav, dict):
        return {
            title: pages.get(inner, inner) if isinstance(inner, str) else _filled(inner, pages)
            for title, inner in nav.items()
        }
    filled = []
    for entry in nav:
        if isinstance(entry, str):
            filled += pages.get(entry, [entry])
        else:
            filled.append(_filled(entry, pages))
    return filled
