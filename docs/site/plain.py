"""The site for those who read no HTML: every page as plain Markdown, and llms.txt, which lists them.

Knows Markdown and, through griffe, docstrings; knows no mkdocs.
"""

import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import griffe

LONGEST = 200  # characters that llms.txt says of a page
_DIRECTIVE = re.compile(r"^::: (\S+)\n(?:    .*\n?)*", re.MULTILINE)


class PlainPage(NamedTuple):
    """A page: its title, the section that it stands in, and its Markdown."""

    title: str
    section: str
    markdown: str


def write(site: Path, pages: dict[str, PlainPage], about: str) -> None:
    """Write each page's Markdown to its path in `site`, and llms.txt, in the order of the pages."""
    lines, section = [f"# hdlm\n\n> {about}\n"], ""
    for path, page in pages.items():
        text = _DIRECTIVE.sub(lambda found: spelled_out(found[1]), page.markdown)
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text, encoding="utf-8")
        if page.section != section:
            section = page.section
            lines.append(f"\n## {section}\n")
        said = first_words(text)
        lines.append(f"- [{page.title}]({path}){f': {said}' if said else ''}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def first_words(markdown: str) -> str:
    """The first sentence of a page that is no heading, table, picture, or code, without its marks."""
    prose = [" ".join(part.split()) for part in _outside_code(markdown).split("\n\n")]
    first = next((part for part in prose if part and not re.match(r"[#|!<:]", part)), "")
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", first).replace("**", "").replace("`", "")
    said = re.split(r"(?<=[.?!]) ", plain)[0].removesuffix(":")
    return said if len(said) <= LONGEST else said[:LONGEST].rsplit(" ", 1)[0] + " ..."


def _outside_code(markdown: str) -> str:
    return re.sub(r"<!--.*?-->|^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)


def moved(markdown: str, places: dict[str, str]) -> str:
    """A page of the repository's root as it reads from project/: links into docs/ and to `places` are led there."""

    def target(found: re.Match[str]) -> str:
        path, mark, anchor = found[2].partition("#")
        if path.startswith("docs/"):
            return f"[{found[1]}](../{path.removeprefix('docs/')}{mark}{anchor})"
        if path in places:
            return f"[{found[1]}]({Path(places[path]).name}{mark}{anchor})"
        return found[0] if "://" in path else found[1]

    return re.sub(r"\[([^]]*)\]\(([^)]+)\)", target, markdown)


@cache
def _package() -> Any:
    return griffe.load("hdlm", search_paths=[Path(__file__).parents[2] / "src"])


def spelled_out(name: str) -> str:
    """What a docstring directive stands for, as Markdown: a module, a class or a function with what is in it."""
    found = _package()[name.removeprefix("hdlm.")]
    return "\n".join(_described(found, name, 2)) + "\n"


def _described(thing: Any, name: str, level: int) -> Iterator[str]:
    signature = f"{name}{_arguments(thing)}"
    yield f"{'#' * level} `{signature}`\n" if thing.is_function or thing.is_class else f"{'#' * level} {name}\n"
    if thing.docstring:
        yield inspect.cleandoc(thing.docstring.value) + "\n"
    if thing.is_module or thing.is_class:
        for member in thing.members.values():
            if not member.is_alias and not member.name.startswith("_") and member.docstring:
                yield from _described(member, member.name, level + 1)


def _arguments(thing: Any) -> str:
    """Names and defaults of a function, or of a class's own `__init__`."""
    if thing.is_class:
        made = thing.members.get("__init__")
        return _arguments(made) if made is not None and made.is_function else ""
    if not thing.is_function:
        return ""
    said, after_star = [], False
    for one in thing.parameters:
        if one.name == "self":
            continue
        kind = str(one.kind.value)
        if kind == "keyword-only" and not after_star:
            said.append("*")
        after_star = after_star or kind in ("keyword-only", "variadic positional")
        star = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
        said.append(f"{star}{one.name}" + ("" if star or one.default is None else f"={one.default}"))
    return f"({', '.join(said)})"
