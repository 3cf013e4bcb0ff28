"""What is imported, and what is not before it is needed: modules, not times (`benchmarks/import_time.py` has those)."""

import json
import subprocess
import sys

import pytest

from hdlm.cli.main import build_parser

SHOWN = """
import contextlib, io, json, sys
before = set(sys.modules)
{code}
found = {{name.split(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names)
print(json.dumps([sorted(found), sorted(sys.modules)]))
"""
HELP = """
from hdlm.cli.main import main
for words in {words}:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main([*words, "--help"]) == 0
    assert said.getvalue().startswith("usage: hdlm")
"""
GENERATE = "import hdlm; hdlm.load('stories').generate('Tom', length=2, sampler={sampler!r}, seed=1)"


def imported(code):
    """Packages outside the standard library that some code imports, and all modules that are there afterwards."""
    command = [sys.executable, "-c", SHOWN.format(code=code)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    packages, modules = json.loads(shown.stdout)
    return packages, set(modules)


def test_help_of_every_command_imports_hdlm_alone():
    commands = build_parser()._subparsers._group_actions[0].choices
    words = [[], *([command] for command in commands), ["plot", "hyperschedule"], ["plot", "layout"]]
    assert len(words) > 12
    packages, modules = imported(HELP.format(words=words))
    assert packages == ["hdlm"]
    rooms = {name.split(".")[1] for name in modules if name.startswith("hdlm.")}
    assert {"nn", "sampling", "fast", "train", "evaluate", "serve", "data", "bundle"}.isdisjoint(rooms)


@pytest.mark.parametrize("code", ["import hdlm; dir(hdlm)", "import hdlm; hdlm.__version__", "import hdlm; hdlm.train"])
def test_the_package_imports_nothing_else_before_it_is_used(code):
    assert imported(code)[0] == ["hdlm"]


@pytest.mark.parametrize("sampler", [None, "speculative"])
def test_writing_loads_neither_compilers_nor_what_only_pictures_and_judges_need(sampler):
    """torch's compiler alone takes a second, and comes with no more than a normal draw on the meta device."""
    packages, modules = imported(GENERATE.format(sampler=sampler))
    assert "torch" in packages
    assert {"matplotlib", "rich", "transformers", "tensorboard", "sympy", "triton"}.isdisjoint(packages)
    assert {"torch._dynamo", "torch._inductor"}.isdisjoint(modules)
