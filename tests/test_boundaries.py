"""The rooms of the code keep to themselves: read from the imports and comparisons of every file."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hdlm
from hdlm.config import build
from hdlm.theory.hyperschedule import Hyperschedule
from hdlm.theory.process import Process

SOURCE = Path(hdlm.__file__).parent
# What an exported folder computes with: copied as it is, and nothing of hdlm's own.
CODE = [SOURCE / "interop" / "huggingface" / name for name in ("configuration_hdlm.py", "modeling_hdlm.py")]
FILES = sorted(set(SOURCE.rglob("*.py")) - set(CODE))
EACH_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))

# What each room may import of hdlm (a room, or a module in it), and from outside the standard library. A new room says
# so here.
ROOMS = {
    "theory": ({"theory"}, {"torch"}),
    "nn": ({"nn", "theory.layout", "theory.levels", "config.model"}, {"torch"}),
    "objectives": ({"objectives", "theory"}, {"torch"}),
    "config": ({"config", "theory", "sampling.rule", "sampling.rules"}, set()),
    "sampling": ({"sampling", "theory", "config", "backend", "processes"}, {"torch", "tokenizers"}),
    "fast": (
        {"fast", "theory", "nn", "objectives", "sampling", "config", "train.batch", "train.loss"},
        {"torch", "triton"},
    ),
    "backend": ({"sampling.company", "sampling.loop", "sampling.speculative", "train.loss"}, set()),
    "data": (
        {"data", "theory", "weights", "files", "folders", "errors"},
        {"torch", "numpy", "tokenizers", "pyarrow", "datasets", "fsspec", "transformers"},
    ),
    "train": (
        {
            "train",
            "backend",
            "bundle",
            "config",
            "data",
            "device",
            "errors",
            "evaluate.bound",
            "evaluate.likelihood",
            "files",
            "folders",
            "nn",
            "objectives",
            "processes",
            "theory",
            "viz",
            "weights",
        },
        {"torch", "numpy", "safetensors", "matplotlib", "wandb"},
    ),
    "evaluate": (
        {
            "evaluate",
            "bundle",
            "config",
            "data",
            "device",
            "errors",
            "files",
            "folders",
            "objectives",
            "processes",
            "sampling",
            "theory",
            "viz",
            "__version__",
        },
        {
            "torch",
            "numpy",
            "tokenizers",
            "matplotlib",
            "transformers",
            "mauve",
            "lm_eval",
            "huggingface_hub",
            "markdown_it",
        },
    ),
    "interop": (
        {"interop", "bundle", "config", "data.tokenizer", "files", "folders", "weights", "errors", "nn", "theory"},
        {"torch", "numpy", "gguf", "tokenizers", "transformers", "safetensors", "huggingface_hub"},
    ),
    "viz": ({"viz", "bundle", "config", "files", "sampling", "theory"}, {"torch", "matplotlib", "rich"}),
    "bench": (
        {
            "bench",
            "backend",
            "bundle",
            "config",
            "data",
            "device",
            "fast",
            "files",
            "nn",
            "processes",
            "sampling",
            "theory",
            "train",
            "viz",
        },
        {"torch", "numpy", "rich", "matplotlib"},
    ),
    "serve": (
        {
            "serve",
            "backend",
            "bundle",
            "config",
            "errors",
            "evaluate.score",
            "files",
            "sampling",
            "theory",
            "viz.history",
            "viz.replay",
        },
        {"jinja2", "starlette", "tokenizers", "uvicorn"},
    ),
    "cli": (
        {
            "cli",
            "backend",
            "bench",
            "bundle",
            "config",
            "data",
            "device",
            "errors",
            "evaluate",
            "files",
            "folders",
            "interop.export",
            "processes",
            "sampling",
            "serve",
            "theory",
            "train",
            "viz",
            "version",
        },
        {"rich"},
    ),
    "bundle": (
        {
            "config",
            "device",
            "errors",
            "evaluate",
            "files",
            "folders",
            "interop",
            "nn",
            "sampling",
            "theory",
            "weights",
        },
        {"torch", "safetensors", "tokenizers"},
    ),
    "weights": ({"errors", "folders"}, {"torch", "safetensors"}),
    "device": (set(), {"torch"}),
    "processes": ({"device", "rendezvous"}, {"torch"}),
    "rendezvous": ({"files"}, {"torch"}),
    "errors": (set(), set()),
    "files": (set(), set()),
    "folders": ({"errors"}, {"huggingface_hub"}),
    "version": (set(), set()),
    "__main__": ({"cli"}, set()),
    "__init__": ({"bundle", "config", "evaluate", "interop.export", "nn", "sampling", "theory", "train"}, set()),
}
# What a room may name in annotations besides.
TYPES = {"sampling": {"bundle"}, "backend": {"sampling"}}
LIMITS = {"sampling/loop.py": 150}  # lines; the loop is read in one sitting
MOST_LINES = 350

CLASSES = {
    name
    for name in dir(hdlm)
    if isinstance(cls := getattr(hdlm, name), type) and issubclass(cls, Hyperschedule | Process)
} - {"Hyperschedule", "Process"}
WORDS = {*build.SCHEDULES, *build.PROCESSES, *build.NOISES, *build.RULES, "custom"}


def home(path):
    """The room that a file is in."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(node):
    """Dotted names that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative import"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def typed_nodes(tree):
    """All that is under `if TYPE_CHECKING`."""
    tests = (node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return {id(inner) for test in tests for statement in test.body for inner in ast.walk(statement)}


def allows(inside, name):
    """Whether a room or module of `inside` holds the dotted name."""
    parts = name.split(".")[1:]
    return any(parts[: len(wall.split("."))] == wall.split(".") for wall in inside)


@EACH_FILE
def test_imports_stay_inside_the_walls(path):
    room, tree = home(path), tree_of(path)
    assert room in ROOMS, f"{room} is a new room: say what it may import"
    inside, outside = ROOMS[room]
    typed = typed_nodes(tree)
    for node in ast.walk(tree):
        for name in imported(node):
            if name.split(".")[0] == "hdlm":
                allowed = inside | (TYPES.get(room, set()) if id(node) in typed else set())
                assert allows(allowed, name), f"{room} may not import {name}"
            else:
                top = name.split(".")[0]
                assert top in outside or top in sys.stdlib_module_names, f"{room} may not import {name}"


def test_the_walls_are_those_of_the_design():
    """Said once more in words, so that a wall cannot be moved in the table alone."""
    reach = {room: {wall.split(".")[0] for wall in inside} for room, (inside, _) in ROOMS.items()}
    assert reach["theory"] == {"theory"}
    assert {"bundle", "objectives", "sampling"}.isdisjoint(reach["nn"])
    assert {"nn", "train", "sampling"}.isdisjoint(reach["objectives"])
    assert {"nn", "train", "objectives"}.isdisjoint(reach["sampling"])
    assert "train" not in reach["evaluate"]
    assert {room for room, found in reach.items() if "cli" in found} == {"cli", "__main__"}
    assert {room for room, found in reach.items() if "fast" in found} == {"fast", "bench"}
    assert {room for room, (_, outside) in ROOMS.items() if "transformers" in outside} == {
        "interop",
        "evaluate",
        "data",
    }


def test_exported_files_stand_for_themselves():
    """They need torch, transformers and each other, and no file of hdlm imports them. One file is a whole network."""
    allowed = {"torch", "transformers"} | sys.stdlib_module_names
    for path in CODE:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                assert node.module in [code.stem for code in CODE]
            else:
                assert {name.split(".")[0] for name in imported(node)} <= allowed
        assert ast.get_docstring(tree_of(path))
    for path in FILES:
        names = [name for node in ast.walk(tree_of(path)) for name in imported(node)]
        assert not [name for name in names for code in CODE if code.stem in name]


@EACH_FILE
def test_only_the_chooser_and_bench_name_the_fast_floor(path):
    """By import or by a string that could be one."""
    if home(path) in ("backend", "bench", "fast"):
        return
    tree = tree_of(path)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and _has_doc(node)}
    for node in ast.walk(tree):
        assert not any(name.startswith("hdlm.fast") for name in imported(node))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            assert "hdlm.fast" not in node.value


def _has_doc(node):
    return ast.get_docstring(node) is not None


@EACH_FILE
def test_big_libraries_are_imported_where_they_are_used(path):
    top = [name for node in tree_of(path).body for name in imported(node)]
    assert not {"transformers", "datasets", "mauve", "wandb"} & {name.split(".")[0] for name in top}


@EACH_FILE
def test_schedules_and_processes_answer_for_themselves(path):
    """Outside the theory nobody asks which class one is of, nor, but in config and interop, for its word."""
    room, tree = home(path), tree_of(path)
    theory = {
        name.rsplit(".", 1)[1] for node in ast.walk(tree) for name in imported(node) if name.startswith("hdlm.theory.")
    }
    for node in ast.walk(tree):
        if room != "theory" and isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            asked = _names(node.args[1]) & CLASSES & theory
            assert not asked, f"line {node.lineno}: isinstance of {asked}"
        if room not in ("theory", "config", "interop") and isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            words = {
                inner.value for side in sides for inner in ast.walk(side) if isinstance(inner, ast.Constant)
            } & WORDS
            assert not words, f"line {node.lineno}: comparison with {words}"
            kinds = [side for side in sides if ast.unparse(side).startswith("type(")]
            assert not kinds or not {name for side in sides for name in _names(side)} & CLASSES & theory


def _names(tree):
    """Names and attributes in an expression."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


@EACH_FILE
def test_files_say_what_they_are_and_stay_small(path):
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), "a module's docstring says what the file does"
    assert len(text.splitlines()) <= LIMITS.get(str(path.relative_to(SOURCE)), MOST_LINES)
    assert path.name != "utils.py"


@pytest.mark.parametrize(
    "code",
    [
        'from hdlm.config import recipes; recipes.get("laptop")',
        "import hdlm; hdlm.recipes.all_recipes()",
        "import hdlm.cli.main as cli; cli.build_parser()",
    ],
)
def test_reading_a_recipe_loads_no_torch(code):
    subprocess.run([sys.executable, "-c", f'import sys; {code}; assert "torch" not in sys.modules'], check=True)
