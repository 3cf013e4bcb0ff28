"""The rooms of the code keep to themselves: read from the imports of every file."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
FILES = sorted(SOURCE.rglob("*.py"))

# What each room may import of hdlm, and from outside the standard library. A new room states its walls here.
ROOMS = {
    "__init__": ({"bundle", "theory"}, set()),
    "theory": ({"theory"}, {"torch"}),
    "nn": ({"nn", "theory"}, {"torch", "triton"}),
    "objectives": ({"theory", "objectives"}, {"torch", "triton"}),
    "config": ({"nn", "theory", "sampling"}, set()),
    "files": (set(), set()),
    "recipe": ({"config"}, set()),
    "recipes": ({"recipe", "config"}, set()),
    "plan": ({"recipe", "config", "nn", "theory"}, {"torch", "rich"}),
    "data": ({"data", "theory", "weights"}, {"torch", "numpy", "tokenizers", "pyarrow", "datasets"}),
    "sampling": ({"sampling", "theory"}, {"torch"}),
    "train": (
        {
            "train",
            "data",
            "objectives",
            "sampling",
            "nn",
            "theory",
            "bundle",
            "config",
            "recipe",
            "weights",
            "files",
            "plots",
        },
        {"torch", "numpy", "safetensors", "matplotlib", "wandb"},
    ),
    "weights": (set(), {"torch", "safetensors"}),
    "bench": (
        {
            "bench",
            "bundle",
            "config",
            "data",
            "files",
            "nn",
            "plots",
            "recipe",
            "recipes",
            "sampling",
            "theory",
            "train",
        },
        {"torch", "numpy", "rich", "matplotlib"},
    ),
    "bundle": (
        {"weights", "config", "files", "nn", "theory", "sampling", "interop", "writing", "evaluate"},
        {"torch", "safetensors", "tokenizers", "huggingface_hub"},
    ),
    "writing": ({"writing", "config", "sampling", "theory", "bundle"}, {"torch", "tokenizers"}),
    "interop": ({"interop", "bundle", "config", "weights", "nn", "theory"}, {"torch"}),
    "plots": ({"theory", "plots", "files"}, {"torch", "matplotlib", "rich"}),
    "evaluate": (
        {
            "evaluate",
            "bundle",
            "config",
            "data",
            "files",
            "objectives",
            "plots",
            "sampling",
            "theory",
            "writing",
            "__version__",
        },
        {"torch", "numpy", "tokenizers", "matplotlib", "transformers", "mauve", "lm_eval", "gguf", "huggingface_hub"},
    ),
    "views": ({"views", "writing", "sampling", "bundle", "theory", "files"}, {"rich", "torch"}),
    "show": ({"show", "bundle", "config", "sampling", "theory", "views", "writing"}, {"rich"}),
    "commands": (
        {
            "commands",
            "show",
            "config",
            "plots",
            "train",
            "recipes",
            "recipe",
            "plan",
            "bundle",
            "writing",
            "sampling",
            "views",
            "files",
            "evaluate",
            "bench",
        },
        {"rich"},
    ),
    "cli": ({"__version__", "commands"}, set()),
}


def imports(path):
    """Dotted names that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(name):
    """The part of hdlm that a dotted name or a path belongs to."""
    return name.split(".")[1] if "." in name else ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_stay_inside_the_walls(path):
    home = path.relative_to(SOURCE / "hdlm").with_suffix("").parts[0]
    names = list(imports(path))
    assert home == "cli" or not any(name.startswith("hdlm.cli") for name in names), "nothing imports cli"
    assert home in ("cli", "commands") or not any(name.startswith("hdlm.commands") for name in names)
    assert home in ROOMS, f"{home} is a new room: say what it may import"
    inside, outside = ROOMS[home]
    for name in names:
        top = name.split(".")[0]
        if top == "hdlm":
            assert room(name) in inside, f"{home} may not import {name}"
        else:
            assert top in outside or top in sys.stdlib_module_names, f"{home} may not import {name}"


def test_the_network_knows_no_process():
    for path in (SOURCE / "hdlm" / "nn").glob("*.py"):
        theory = {name.split(".")[2] for name in imports(path) if name.startswith("hdlm.theory")}
        assert theory <= {"layout", "levels"}, path


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_say_what_they_are_and_stay_small(path):
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), "a module's docstring says what the file does"
    assert len(text.splitlines()) <= 350
    assert path.name != "utils.py"
