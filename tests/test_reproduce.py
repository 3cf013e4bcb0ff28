"""docs/reproduce.toml: held to the paper's own rows and values, to the recipes, and to the command line."""

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from hdlm.cli.main import build_parser
from hdlm.config.parse import override
from hdlm.config.recipes import all_recipes, get
from hdlm.evaluate.sweep import parse_sweep

ROOT = Path(__file__).parents[1]
TABLES = {
    table["label"]: table
    for table in tomllib.loads((ROOT / "docs" / "reproduce.toml").read_text(encoding="utf-8"))["table"]
}
ROWS = [(label, row) for label, table in TABLES.items() for row in table.get("rows", ())]
PAPER = ROOT.parent / "shared" / "paper" / "unifying-ar-and-diffusion.tex"
needs_paper = pytest.mark.skipif(not PAPER.exists(), reason="the paper's source is not beside this checkout")

# A row's model in the paper's words: [$\mixSEDD{=0.02}, \taublockomega{=\nicefrac{d}{4}}, \textsc{aligned}$].
_MODEL = re.compile(
    r"\\mix(SEDD|MDLM)\{?=([\d.]+)\}?,\s*(?:\\[;,]|\\ )?\s*"
    r"\\tau(flat|blockomega|slideomega)(?:\{?=\\nicefrac\{d\}\{(\d+)\}\}?)?,\s*(?:\\[;,]|\\ )?\s*"
    r"(?:\\textsc\{(aligned|shifted)\}|\\(aligned|shifted)conf)"
)


def source(label):
    """The LaTeX of the float that has the label."""
    text = re.sub(r"\\\(|\\\)", "$", PAPER.read_text(encoding="utf-8"))
    return next(
        part
        for part in re.findall(r"\\begin\{(?:table|figure)\*?\}.*?\\end\{(?:table|figure)\*?\}", text, re.DOTALL)
        if rf"\label{{{label}}}" in part
    )


def models_of_the_paper(label):
    """Its rows that name a process, a hyperschedule and a configuration, in our words."""
    found = set()
    for family, value, kind, part, *sides in _MODEL.findall(source(label).replace("$", "")):
        name = {"flat": "flat", "blockomega": f"block d/{part}", "slideomega": f"slide d/{part}"}[kind]
        found.add(f"{'gamma' if family == 'SEDD' else 'epsilon'} {float(value):g}, {name}, {sides[0] or sides[1]}")
    return found


def ours(label):
    """The models of a table, with those that it shares with another."""
    table = TABLES[label]
    found = {row["model"] for row in table.get("rows", ()) if "model" in row}
    return found.union(*(ours(other) for other in table.get("elsewhere", ())))


@needs_paper
@pytest.mark.parametrize(
    ("label", "count"),
    [
        ("tab:lm1b-ppl", 6),
        ("tab:model_performance", 4),
        ("tab:model_performance_complete", 7),
        ("tab:genppl", 6),
        ("tab:appendix_owt_nucleus", 5),
        ("tab:rho", 1),
        ("tab:eta", 2),
        ("tab:eta_subset", 2),
    ],
)
def test_every_model_of_a_table_has_its_row(label, count):
    rows = models_of_the_paper(label)
    assert len(rows) == count
    assert ours(label) == rows


@needs_paper
def test_the_ablation_has_its_rows():
    """Table 1 has gamma and tau in columns."""
    rows = re.findall(
        r"\\texttt\{\((.)\)\}\}\} & .*?&\s*([\d.]+) & \$([\d.]+)\$\s*&\s*\$\\tau(\w+)", source("tab:abl"), re.S
    )
    assert [row[0] for row in rows] == list("abcde")
    for (mark, _, gamma, kind), row in zip(rows, TABLES["tab:abl"]["rows"], strict=True):
        recipe = get(row["recipe"])
        assert row["name"].startswith(f"({mark})")
        assert (recipe.process.gamma or 0) == float(gamma)
        assert recipe.schedules[0].kind == ("slide" if kind.startswith("slide") else "flat")
        assert (recipe.steps, recipe.parameterization, recipe.shifted) == (850_000, "score", False)
    models = {row["name"][1]: get(row["recipe"]).model for row in TABLES["tab:abl"]["rows"]}
    assert [models[mark].weighted_embedding for mark in "abcde"] == [False, False, True, True, True]
    assert [models[mark].conditioned for mark in "abcde"] == [True, True, True, False, True]
    assert get("owt-abl-e").schedules[0].width == 1024


@needs_paper
def test_swept_values_are_the_papers():
    printed = [float(value) for value in re.findall(r"\\mixSEDD\{=([\d.]+)\}\$ &", source("tab:alpha"))]
    assert printed == [float(row["model"].split()[1].strip(",")) for row in TABLES["tab:alpha"]["rows"]]
    etas = {float(value) for value in re.findall(r"\\eta=([\d.]+)", source("tab:eta"))}
    points = parse_sweep(shlex.split(TABLES["tab:eta"]["commands"][1].partition("--sweep ")[2]))
    assert {point["eta"] for point in points} == etas
    assert {point["rate"] for point in points} == {float(x) for x in re.findall(r"\\rho\$=(\d+)", source("tab:eta"))}
    rates = re.findall(r"\$\\rho=(?:\\frac\{1\}\{(\d+)\}|(\d+))", source("tab:rho"))
    points = parse_sweep(shlex.split(TABLES["tab:rho"]["commands"][0].partition("--sweep ")[2]))
    assert {point["rate"] for point in points} == {1 / float(part) if part else float(whole) for part, whole in rates}
    swept = parse_sweep(["rate=8,4,2,1"])
    assert {point["rate"] for point in swept} == {
        float(value) for value in re.findall(r"\\it\{\$\\rho=(\d+)", source("tab:appendix_owt_nucleus"))
    }


def recipe_of(row):
    recipe = get(row["recipe"])
    words = row.get("fields", "").split()
    for name, value in zip(words[::2], words[1::2], strict=True):
        recipe = override(recipe, name.removeprefix("--"), value)
    return recipe


@pytest.mark.parametrize(("label", "row"), [(label, row) for label, row in ROWS if "model" in row])
def test_a_row_is_what_its_recipe_trains(label, row):
    recipe = recipe_of(row)
    process, schedule, side = row["model"].split(", ")
    kind, value = process.split()
    assert recipe.process.kind == kind
    assert getattr(recipe.process, kind) == float(value)
    assert recipe.shifted == (side == "shifted")
    assert recipe.parameterization == {"gamma": "score", "epsilon": "hdce"}[kind]
    [member] = recipe.schedules
    assert member.kind == schedule.split()[0]
    if member.kind != "flat":
        width = schedule.split()[1]
        assert member.width == (recipe.length // int(width[2:]) if width.startswith("d/") else int(width))
        assert all_recipes()[recipe.goes_on_from].shifted == recipe.shifted
        assert recipe.steps == 150_000
    else:
        assert recipe.goes_on_from is None


def test_tokens_are_the_papers():
    """444B after stage 1, 524B after both; 26B in the figure of gamma."""
    flat, block = get("owt-gamma-flat"), get("owt-gamma-block256")
    per_step = flat.global_batch * flat.length
    assert round(flat.steps * per_step / 1e9) in (444, 445, 446)
    assert round((flat.steps + block.steps) * per_step / 1e9) == 524
    assert get("owt-ar").steps == flat.steps + block.steps
    for row in TABLES["figure:alpha-ablation-plot"]["rows"]:
        assert round(recipe_of(row).steps * per_step / 1e9, 2) == 26.0


@pytest.mark.parametrize(
    ("label", "command"), [(label, c) for label in TABLES for c in TABLES[label].get("commands", ())]
)
def test_commands_parse_with_what_their_rows_add(label, command):
    rows = TABLES[label].get("rows") or [{}]
    for row in rows:
        extra = row.get("sampling", "") if "evaluate" in command else ""
        build_parser().parse_args(shlex.split(f"{command} {extra}")[1:])
        if "--sweep" in command:
            assert parse_sweep(shlex.split(command.partition("--sweep ")[2].partition(" --")[0]))


def test_the_page_is_written_from_it():
    spec = importlib.util.spec_from_file_location("reproduce", ROOT / "docs" / "reproduce.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8") == module.page()
