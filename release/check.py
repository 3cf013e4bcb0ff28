"""What holds before a version is tagged, checked in order: `make release-check`.

    python release/check.py [--tag v0.1.0] [--rehearse] [--only NAME ...]
    python release/check.py --notes        # what the changelog says of this version

Prints a row a check, and ends at the first that fails with one line and exit code 1. `--tag`: the tag that is to be, or
is, at this commit. `--rehearse`: a changelog that says "unreleased", and changes in the tree, are let through.
"""

import argparse
import re
import sys
from pathlib import Path

from steps import Check, FailedError, go_through, output

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from hdlm.version import NEXT, version  # noqa: E402, of this checkout, whatever is installed


def section(changelog: str) -> tuple[str, str]:
    """The heading of a changelog's newest version, and what stands below it."""
    found = re.search(r"^## (.+?)$\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise FailedError("CHANGELOG.md has no heading `## VERSION`")
    return found[1].strip(), found[2].strip()


def versions(changelog: str, citation: str, *, tag: str | None, tags: dict[str, str], head: str, draft: bool) -> str:
    """Where a version is named it is the same one: version.py, changelog, citation and tag.

    `tags`: commits by the tag that points to them; `head`: the commit that is checked out.
    """
    heading, text = section(changelog)
    if heading != NEXT and not (draft and heading == f"{NEXT} (unreleased)"):
        raise FailedError(f"CHANGELOG.md begins with `## {heading}`, and NEXT in src/hdlm/version.py is {NEXT}")
    if not text:
        raise FailedError(f"CHANGELOG.md says nothing of {NEXT}")
    cited = re.search(r"^version: (.+)$", citation, re.MULTILINE)
    if cited is None or cited[1] != NEXT:
        raise FailedError(f"CITATION.cff names version {cited and cited[1]}, and NEXT is {NEXT}")
    if tag is not None and tag != f"v{NEXT}":
        raise FailedError(f"the tag is {tag}, and NEXT is {NEXT}: it must be v{NEXT}")
    if tags.get(f"v{NEXT}", head) != head:
        raise FailedError(f"v{NEXT} is another commit: raise NEXT in src/hdlm/version.py")
    return f"{NEXT}; this commit is {version()}"


def _tags() -> dict[str, str]:
    lines = output(
        ["git", "for-each-ref", "refs/tags", "--format=%(refname:short) %(objectname) %(*objectname)"], cwd=ROOT
    )
    return {name: commits[-1] for name, *commits in map(str.split, lines.splitlines())}


def _named(args: argparse.Namespace) -> str:
    return versions(
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        (ROOT / "CITATION.cff").read_text(encoding="utf-8"),
        tag=args.tag,
        tags=_tags(),
        head=output(["git", "rev-parse", "HEAD"], cwd=ROOT).strip(),
        draft=args.rehearse,
    )


def _tree(rehearse: bool) -> str:
    """Nothing changed, nothing untracked: what is tagged is what was checked."""
    changed = output(["git", "status", "--porcelain"], cwd=ROOT).splitlines()
    if changed and not rehearse:
        raise FailedError(f"{len(changed)} files are not committed, {changed[0].split()[-1]} among them")
    return f"{len(changed)} files changed"


def _make(*words: str) -> Check:
    """A target, and the last line that it prints."""

    def check() -> str:
        lines = output(["make", "--no-print-directory", *words], cwd=ROOT).split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")[:100]

    return check


def _docs() -> str:
    if not re.search(r"^docs:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE):
        return "no `make docs` in this tree"
    return _make("docs")()


def main() -> int:
    """Check, or print the notes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", metavar="TAG")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--notes", action="store_true")
    args = parser.parse_args()
    if args.notes:
        print(section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))[1])
        return 0
    checks: dict[str, Check] = {
        "version": lambda: _named(args),
        "tree": lambda: _tree(args.rehearse),
        "lint": _make("lint"),
        "workflows": _make("lint-workflows"),
        "docs": _docs,
        "tests": _make("test"),
        "reference floor": _make("test-reference"),
        "wheel": _make("wheel"),
        "smoke": lambda: output([sys.executable, "release/smoke.py"], cwd=ROOT).splitlines()[-1],
    }
    unknown = set(args.only or ()) - set(checks)
    if unknown:
        parser.error(f"--only {min(unknown)} is not accepted: it must be one of {', '.join(checks)}")
    code = go_through({name: check for name, check in checks.items() if name in (args.only or checks)})
    if code == 0 and not args.rehearse and not args.only:
        print(f"all holds: git tag v{NEXT} && git push origin v{NEXT}")
    return code


if __name__ == "__main__":
    sys.exit(main())
