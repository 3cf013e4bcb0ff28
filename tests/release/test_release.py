"""The release check-list says no where it should, and the workflows are about what there is."""

import io
import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from hdlm.version import NEXT

ROOT = Path(__file__).parents[2]
CHANGELOG = f"# Changelog\n\n## {NEXT}\n\n- Something.\n\n## 0.0.1\n\n- Less.\n"
CITATION = f"cff-version: 1.2.0\nversion: {NEXT}\n"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture
def scripts(monkeypatch):
    """The modules of release/, which are scripts beside each other."""
    monkeypatch.syspath_prepend(str(ROOT / "release"))
    import check
    import smoke
    import steps

    yield check, smoke, steps
    for name in ("check", "smoke", "steps"):
        sys.modules.pop(name)


def asked(check, **changed):
    said = {"changelog": CHANGELOG, "citation": CITATION, "tag": None, "tags": {}, "head": "abc", "draft": False}
    said |= changed
    return check.versions(said.pop("changelog"), said.pop("citation"), **said)


def test_one_version_everywhere_is_let_through(scripts):
    check, *_ = scripts
    assert asked(check).startswith(f"{NEXT}; this commit is ")
    assert asked(check, tag=f"v{NEXT}", tags={f"v{NEXT}": "abc", "v0.0.1": "def"})
    assert asked(check, changelog=CHANGELOG.replace(NEXT, f"{NEXT} (unreleased)"), draft=True)
    assert check.section(CHANGELOG) == (NEXT, "- Something.")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"changelog": CHANGELOG.replace(NEXT, f"{NEXT} (unreleased)")}, "begins with .* and NEXT in"),
        ({"changelog": CHANGELOG.replace(NEXT, "7.0"), "draft": True}, "begins with `## 7.0`"),
        ({"changelog": f"## {NEXT}\n\n## 0.0.1\n- Less."}, f"says nothing of {NEXT}"),
        ({"changelog": "Nothing."}, "has no heading"),
        ({"citation": "version: 7.0\n"}, "CITATION.cff names version 7.0"),
        ({"citation": "title: x\n"}, "CITATION.cff names version None"),
        ({"tag": "v7.0"}, f"the tag is v7.0, .* it must be v{NEXT}"),
        ({"tags": {f"v{NEXT}": "another"}}, f"v{NEXT} is another commit: raise NEXT"),
    ],
)
def test_two_versions_are_told_of(scripts, changed, said):
    check, _, steps = scripts
    with pytest.raises(steps.FailedError, match=said):
        asked(check, **changed)


def test_the_first_failure_ends_it_with_a_line(scripts, capsys):
    _, _, steps = scripts
    done = []

    def fails():
        raise steps.FailedError("not\nso")

    assert steps.go_through({"one": lambda: done.append(1) or "fine"}) == 0
    assert steps.go_through({"one": lambda: "fine", "other": fails, "last": lambda: done.append(2) or ""}) == 1
    said = capsys.readouterr()
    assert done == [1]
    assert said.err == "other: not so\n"
    assert re.search(r"^one +ok +[\d.]+ s  fine$\n^other +FAILED +[\d.]+ s$", said.out, re.MULTILINE)


def test_a_command_is_what_it_ends_with(scripts, tmp_path):
    _, _, steps = scripts
    ends = [sys.executable, "-c", "import sys; print('first'); sys.exit('the last line')"]
    assert steps.output(ends, cwd=tmp_path, code=1, errors=True) == "the last line\n"
    with pytest.raises(steps.FailedError, match="ended with 1 instead of 0: the last line"):
        steps.output(ends, cwd=tmp_path)
    with pytest.raises(steps.FailedError, match="nowhere: No such file"):
        steps.output(["nowhere"], cwd=tmp_path)


@pytest.fixture
def dist(tmp_path, scripts, monkeypatch):
    """A folder with a wheel and an sdist of a package of three files, written by a function that takes more names."""
    _, smoke, _ = scripts
    package = ["hdlm/__init__.py", "hdlm/py.typed", "hdlm/models/m.bin"]
    beside = ["pyproject.toml", "README.md", "LICENSE", "tests/conftest.py"]
    monkeypatch.setattr(smoke, "tracked", lambda: {*(f"src/{name}" for name in package), *beside})

    def write(*more, without=(), python=">=3.11"):
        meta = f"Metadata-Version: 2.4\nName: hdlm\nVersion: 9.9\nRequires-Python: {python}\n"
        with zipfile.ZipFile(tmp_path / "hdlm-9.9-py3-none-any.whl", "w") as archive:
            for name in [*package, *more]:
                if name not in without:
                    archive.writestr(name, "x")
            archive.writestr("hdlm-9.9.dist-info/METADATA", meta)
        with tarfile.open(tmp_path / "hdlm-9.9.tar.gz", "w:gz") as archive:
            for name in ["PKG-INFO", *beside, *(f"src/{name}" for name in package), *more]:
                if name not in without:
                    archive.addfile(tarfile.TarInfo(f"hdlm-9.9/{name}"), io.BytesIO())
        return smoke.Archives(tmp_path)

    return write


def test_archives_hold_the_package_and_nothing_else(dist, scripts):
    _, _, steps = scripts
    assert dist().files_of_wheel().startswith("9.9: 3 files")
    assert dist().files_of_sdist().startswith("7 files")
    for name in ("hdlm/notes.txt", "tests/test_x.py"):
        with pytest.raises(steps.FailedError, match=name):
            dist(name).files_of_wheel()
        with pytest.raises(steps.FailedError, match=name):
            dist(name).files_of_sdist()
    with pytest.raises(steps.FailedError, match=r"hdlm/py\.typed"):
        dist(without=["hdlm/py.typed"]).files_of_wheel()
    with pytest.raises(steps.FailedError, match=r"lacks LICENSE"):
        dist(without=["LICENSE"]).files_of_sdist()
    with pytest.raises(steps.FailedError, match=r"Requires-Python: >=3\.8"):
        dist(python=">=3.8").files_of_wheel()


def test_a_folder_without_archives_is_told_of(scripts, tmp_path):
    _, smoke, steps = scripts
    with pytest.raises(steps.FailedError, match=r"holds 0 files hdlm-\*\.whl"):
        smoke.Archives(tmp_path)


def test_python_versions_are_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == f">={versions[0]}"
    matrices = re.findall(r"python: \[(.*)\]", (ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert len(matrices) == 2
    assert all(re.findall(r'"([\d.]+)"', matrix) == versions for matrix in matrices)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_that_exist_and_actions_that_stay(path):
    text = path.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = set(re.findall(r"run: make ([a-z-]+)", text))
    assert called
    assert called <= targets
    for action, mark in re.findall(r"uses: (\S+)@(\S+)", text):
        # A commit, or the branch that its own page asks for.
        assert re.fullmatch(r"[0-9a-f]{40}", mark) or (action, mark) == ("pypa/gh-action-pypi-publish", "release/v1")


def test_forms_are_what_a_person_can_fill_in():
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        if path.name == "config.yml":
            continue
        assert {"name", "description", "body"} <= set(form)
        assert len({part["id"] for part in form["body"]}) == len(form["body"])
        assert all(part["type"] in ("textarea", "input") and part["attributes"]["label"] for part in form["body"])
