"""The fenced blocks of README and docs, and the commands in them.

A block in `python` is run, all of a page in one namespace; one without a language holds commands, each on a line; what
is neither is `text` or `diff`. A comment before a block says what else is done with it: `<!-- slow: why -->`,
`<!-- not run: why -->`, or whose test it is (`example`, `checks`).
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = ("text", "diff", "json")
ELSEWHERE = ("example", "checks")  # marks of tests/test_architecture.py and of docs/checks.py
_FENCE = re.compile(r"(?:<!-- ([a-z ]+): ([^\n]*?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ENDS = ("&&", "||", ";", "|", "&")


@dataclass(frozen=True)
class Block:
    """A block, where it stands, and what its comment says of it."""

    page: str
    line: int
    language: str
    text: str
    mark: str
    reason: str

    def __str__(self):
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """Its commands as words, without comments and redirections."""
        try:
            return [command for line in self.text.splitlines() for command in commands_of(line)]
        except ValueError as error:
            raise ValueError(f"{self} holds no commands ({error}): write python or text behind its fence") from None


def blocks(path: Path) -> list[Block]:
    """All blocks of a page; the Python behind an example's diff belongs to the example."""
    text, found = path.read_text(encoding="utf-8"), []
    for match in _FENCE.finditer(text):
        mark, reason, language, body = match.groups(default="")
        if language == "python" and found and (found[-1].mark, found[-1].language) == ("example", "diff"):
            mark, reason = found[-1].mark, found[-1].reason
        line = text.count("\n", 0, match.start(3)) + 1
        found.append(Block(str(path.relative_to(ROOT)), line, language, body, mark, reason))
    return found


def all_blocks() -> list[Block]:
    """Of all pages."""
    return [block for path in PAGES for block in blocks(path)]


def commands_of(line: str) -> list[list[str]]:
    """The commands of one line of a shell."""
    words = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
    words.whitespace_split = True
    found: list[list[str]] = [[]]
    skipped = False
    for word in words:
        if word in _ENDS:
            found.append([])
        elif set(word) <= {"<", ">"}:
            skipped = True
        elif skipped:
            skipped = False
        else:
            found[-1].append(word)
    return [command for command in found if command]
