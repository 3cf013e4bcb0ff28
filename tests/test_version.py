"""The version is what the tag, the commits behind it and the build say."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
from packaging.version import Version

import hdlm
from hdlm import version as module
from hdlm.version import NEXT, of_description, version

GIT = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ("v0.3.0-0-g1a2b3c4", "0.3.0"),
        ("v0.3.0rc1-0-g1a2b3c4", "0.3.0rc1"),
        ("v0.0.1-12-g1a2b3c4", f"{NEXT}.dev12+g1a2b3c4"),
        ("v0.0.1-0-g1a2b3c4-dirty", f"{NEXT}.dev0+g1a2b3c4.dirty"),
        (f"v{NEXT}-3-g1a2b3c4", f"{NEXT}.post3+g1a2b3c4"),
        ("196-g8943f3b-dirty", f"{NEXT}.dev196+g8943f3b.dirty"),
    ],
)
def test_what_git_says_becomes_a_version(described, expected):
    assert of_description(described) == expected
    assert str(Version(expected)) == expected


def test_what_is_no_description_is_refused():
    with pytest.raises(ValueError, match="'main' is not accepted: it must be what git says of a commit"):
        of_description("main")


def test_all_ways_to_ask_agree():
    shown = subprocess.run([sys.executable, "-m", "hdlm", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"hdlm {version()}\n"
    assert hdlm.__version__ == version() == str(Version(version()))


@pytest.fixture
def checkout(tmp_path):
    """A repository with this version.py in it, and a way to ask that copy."""
    root = tmp_path / "checkout"
    (root / "src" / "hdlm").mkdir(parents=True)
    shutil.copy(module.__file__, root / "src" / "hdlm" / "version.py")
    (root / "pyproject.toml").write_text("")

    def ask(**environment):
        code = "import runpy; print(runpy.run_path('src/hdlm/version.py')['version']())"
        command = [sys.executable, "-I", "-c", code]
        shown = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=root, env=os.environ | environment
        )
        return shown.stdout.strip()

    return root, ask


def git(root, *words):
    shown = subprocess.run([*GIT, *words], cwd=root, capture_output=True, text=True, check=True)
    return shown.stdout.strip()


def commit(root, text):
    (root / "pyproject.toml").write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "change")
    return git(root, "rev-parse", "HEAD")


@needs_git
def test_a_checkout_is_as_far_as_its_commits(checkout, tmp_path):
    root, ask = checkout
    git(root, "init", "-q")
    first = commit(root, "# 1")
    release, sep, local = ask().partition("+g")
    assert (release, sep) == (f"{NEXT}.dev1", "+g")
    assert first.startswith(local)
    git(root, "tag", "nightly")  # is no version
    assert ask().startswith(f"{NEXT}.dev1+g")
    git(root, "tag", f"v{NEXT}")
    assert ask() == NEXT
    assert ask(GIT_DIR=str(tmp_path / "nowhere")) == NEXT  # a hook of another repository
    (root / "pyproject.toml").write_text("# changed")
    assert ask().startswith(f"{NEXT}.post0+g")
    assert ask().endswith(".dirty")
    commit(root, "# 2")
    assert ask().startswith(f"{NEXT}.post1+g")


def test_without_git_it_is_what_was_installed_or_comes_before_the_next(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_ROOT", tmp_path)
    monkeypatch.setattr(module, "installed", lambda name: "7.8.9")
    assert version.__wrapped__() == "7.8.9"

    def lacking(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "installed", lacking)
    assert version.__wrapped__() == f"{NEXT}.dev0"
    assert Version(f"{NEXT}.dev0") < Version(f"{NEXT}.dev1+g1a2b3c4") < Version(NEXT) < Version(f"{NEXT}.post1")


def test_a_repository_that_git_cannot_read_is_none(checkout):
    root, ask = checkout
    without = ask()
    (root / ".git").write_text("gitdir: nowhere\n")
    assert ask() == without
