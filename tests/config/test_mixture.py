"""Mixtures in words and levels from files: what is taken, and that what is wrong is named."""

import json
import subprocess
import sys

import pytest

from hdlm.config import levels as reading
from hdlm.config.levels import read_levels
from hdlm.config.mixture import MixtureMember, read_mixture
from hdlm.config.parse import override
from hdlm.config.recipe import Recipe

LEVELS = ((2, 2, 2), (1, 2, 1), (0, 1, 1), (0, 0, 0))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "levels.json"
    path.write_text(json.dumps(LEVELS))
    return path


@pytest.mark.parametrize(
    ("words", "members"),
    [
        ("block:16:6,flat:2", [("block", 16, 6.0), ("flat", None, 2.0)]),
        ("block:16", [("block", 16, 1.0)]),
        ("quench, slide:4:0.5", [("quench", None, 1.0), ("slide", 4, 0.5)]),
        ("flat:1e-3", [("flat", None, 0.001)]),
        ("doubling:8:2", [("doubling", 8, 2.0)]),
        ("block", [("block", None, 1.0)]),
    ],
)
def test_words_are_a_mixture(words, members):
    found = read_mixture(words, "schedules")
    assert found == tuple(MixtureMember(*member) for member in members)
    assert read_mixture(",".join(map(str, found)), "schedules") == found


def test_levels_come_from_a_file(file):
    for words, share in ((f"custom:{file}", 1.0), (f"custom:{file}:2.5", 2.5)):
        assert read_mixture(words, "schedules") == (MixtureMember("custom", share=share, levels=LEVELS),)
    recipe = override(Recipe("base", length=3), "schedules", f"flat,custom:{file}:3")
    assert [member.kind for member in recipe.schedules] == ["flat", "custom"]
    file.unlink()
    again = Recipe.from_json(json.loads(json.dumps(recipe.to_json())))
    assert again == recipe
    assert again.schedules[1].schedule(3).build().levels.tolist() == [list(row) for row in LEVELS]
    assert "levels" not in recipe.to_json()["schedules"][0], "what came later is not in recipes that do without it"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "schedules = '' is not accepted: write block:WIDTH:SHARE"),
        ("block:16,", "schedules = '' is not accepted"),
        ("flat:16:2", "schedules = 'flat:16:2' is not accepted: write flat:SHARE, as in block:16:6,flat:2"),
        ("block:1:2:3", "schedules = 'block:1:2:3' is not accepted: write block:WIDTH:SHARE"),
        ("block:x", "schedules = 'block:x' is not accepted: the width 'x' must be 1 or more"),
        ("block:0", "the width '0' must be 1 or more"),
        ("block:4:x", "the share 'x' must be a number above 0 and at most 1e"),
        ("flat:nan", "the share 'nan' must be"),
        ("flat:inf", "the share 'inf' must be"),
        ("flat:-1", "the share '-1' must be"),
        ("custom", "schedules = 'custom' is not accepted: write custom:FILE"),
        ("custom:nowhere.json:2", "nowhere.json is not accepted: it is no file of levels"),
    ],
)
def test_wrong_words_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        override(Recipe("base"), "schedules", words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[[1,", "is not JSON"),
        ("[" * 100_000, "its lists are nested too deeply"),
        ('{"steps": 3}', "at least two rows"),
        ("[3, 4]", "at least two rows"),
        ("[[1, 1], [0]]", "has 1 columns in row 1: it must have 2 as in row 0"),
        ("[[1, 1], [0, null]]", "holds None at row 1, column 1: it must be an integer"),
        ("[[1, 1], [0, NaN]]", "holds nan at row 1, column 1: it must be an integer"),
        ("[[1, 1], [0, [0]]]", r"holds \[0\] at row 1, column 1: it must be an integer"),
        ("[[2, 1], [0, 0]]", "holds 1 at row 0, column 1: the first row must be 2"),
        ("[[2, 2], [0, 1]]", "holds 1 at row 1, column 1: the last row must be 0"),
        ("[[2, 2], [1, 2], [2, 2], [0, 0]]", "rises from 1 to 2 at row 2, column 0: levels may never rise"),
        ("[[2, 2], [-1, 2], [0, 0]]", "rises from -1 to 0 at row 2, column 0"),
        (f"[[{10**400}], [0]]", "starts at 1000"),
    ],
)
def test_wrong_files_are_named_by_row_and_column(text, message, tmp_path):
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as refused:
        read_levels(path)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


def test_files_have_a_size(file, monkeypatch):
    assert read_levels(file) == LEVELS
    file.write_text(json.dumps({"levels": LEVELS}))
    assert read_levels(file) == LEVELS
    monkeypatch.setattr(reading, "MAX_BYTES", file.stat().st_size - 1)
    with pytest.raises(ValueError, match=r"levels.json is not accepted: it has 0 MiB, and levels may have"):
        read_levels(file)
    with pytest.raises(ValueError, match="is no file of levels"):
        read_levels(file.parent)


def test_reading_levels_loads_no_torch(file):
    code = f"import sys; from hdlm.config.mixture import read_mixture; read_mixture('custom:{file}', ''); "
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True)
