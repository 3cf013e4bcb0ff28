"""What is in the wheel and the sdist, and whether the wheel works where there is nothing else of this repository.

    python release/smoke.py [--dist dist] [--python python3.13] [--keep FOLDER]

Makes an empty environment, installs the wheel into it, and uses it from an empty folder, with an empty home: the demo,
text, a bound, a server, types. Prints a row a check, and ends at the first that fails with one line and exit code 1.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from email import message_from_bytes
from pathlib import Path, PurePosixPath

from steps import FailedError, go_through, output

ROOT = Path(__file__).resolve().parents[1]
SDIST = {"src", "tests", "docs", "benchmarks", "release"}  # and files that lie beside them
COMMANDS = "demo plot train plan sample infill score evaluate compare bench serve".split()  # noqa: SIM905, read as a list
MOST = 100 * 2**20  # bytes of a file that PyPI takes
TYPED = """
from typing import assert_type

import hdlm

bundle = hdlm.load("stories")
assert_type(bundle, hdlm.Bundle)
assert_type(bundle.generate("Tom had", length=8, hyperschedule=hdlm.Block(8, 4)).text, list[str])
assert_type(bundle.perplexity("Tom had a ball."), hdlm.Bound)
for frame in bundle.stream("Tom", length=8):
    assert_type(frame, hdlm.Frame)
schedules: list[hdlm.Hyperschedule] = [hdlm.Quench(3), hdlm.Flat(3), hdlm.Block(3, 2), hdlm.Slide(3, 2)]
rules: list[type[hdlm.Rule]] = [hdlm.Posterior, hdlm.Certain, hdlm.Remask, hdlm.Speculative]
noise: hdlm.Process = hdlm.GammaHybrid(11, 0.5, hdlm.LogLinear())
assert_type(hdlm.__version__, str)
trainer = hdlm.train
bundle.generate("Tom had", length="eight")
"""
WRONG = ('"eight"',)  # what a type checker has to find in that, and nothing else


def tracked() -> set[str] | None:
    """Files of this commit, where there is git."""
    try:
        return set(output(["git", "ls-files"], cwd=ROOT).splitlines())
    except FailedError:
        return None


class Archives:
    """The wheel and the sdist of a folder."""

    def __init__(self, dist: Path) -> None:
        found = {suffix: sorted(dist.glob(f"hdlm-*{suffix}")) for suffix in (".whl", ".tar.gz")}
        for suffix, paths in found.items():
            if len(paths) != 1:
                raise FailedError(f"{dist} holds {len(paths)} files hdlm-*{suffix}, and one is wanted: make wheel")
        (self.wheel,), (self.sdist,) = found.values()

    def files_of_wheel(self) -> str:
        """The package as it is tracked, no file less or more, and what a wheel says of itself."""
        with zipfile.ZipFile(self.wheel) as archive:
            sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
            meta = message_from_bytes(archive.read(next(name for name in sizes if name.endswith("dist-info/METADATA"))))
        package = {name for name in sizes if name.startswith("hdlm/")}
        others = {name for name in sizes if not re.match(r"hdlm(-[^/]+\.dist-info)?/", name)}
        if others:
            raise FailedError(f"what does not belong: {', '.join(sorted(others))}")
        known = tracked()
        if known is not None:
            expected = {name.removeprefix("src/") for name in known if name.startswith("src/hdlm/")}
            if package != expected:
                raise FailedError(f"more or less than the package: {', '.join(sorted(package ^ expected)[:5])}")
        if "hdlm/py.typed" not in package:
            raise FailedError("hdlm/py.typed is missing")
        if meta["Requires-Python"] != ">=3.11":
            raise FailedError(f"Requires-Python: {meta['Requires-Python']}")
        self.version = meta["Version"]
        size = self.wheel.stat().st_size
        if size > MOST:
            raise FailedError(f"{size} bytes are more than PyPI takes")
        models = sum(size for name, size in sizes.items() if name.startswith("hdlm/models/"))
        return f"{self.version}: {len(package)} files, {size / 1e6:.1f} MB; models {models / 1e6:.1f} MB unpacked"

    def files_of_sdist(self) -> str:
        """What it takes to build and test it, all of it tracked."""
        with tarfile.open(self.sdist) as archive:
            names = {str(PurePosixPath(*PurePosixPath(entry.name).parts[1:])) for entry in archive if entry.isfile()}
        names -= {"PKG-INFO"}
        known = tracked()
        strange = {name for name in names if "/" in name and name.split("/")[0] not in SDIST}
        strange |= set() if known is None else names - known
        if strange:
            raise FailedError(f"what does not belong: {', '.join(sorted(strange)[:5])}")
        missing = {"pyproject.toml", "README.md", "LICENSE", "src/hdlm/__init__.py", "tests/conftest.py"} - names
        if missing:
            raise FailedError(f"lacks {', '.join(sorted(missing))}")
        return f"{len(names)} files, {self.sdist.stat().st_size / 1e6:.1f} MB"


class Place:
    """An empty environment, and an empty folder to work in."""

    def __init__(self, folder: Path, python: str, archives: Archives) -> None:
        self.python, self.archives = python, archives
        self.bin, self.work = folder / "venv" / "bin", folder / "work"
        home = folder / "home"
        for made in (self.work, home):
            made.mkdir(parents=True)
        own = ("PYTHON", "HDLM_", "VIRTUAL_ENV", "GIT_")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        self.env |= {"HOME": str(home), "HF_HUB_OFFLINE": "1", "COLUMNS": "80"}

    def run(self, *words: str | Path, code: int = 0, errors: bool = False) -> str:
        """What a program of the environment prints, called in the empty folder."""
        return output([self.bin / str(words[0]), *words[1:]], cwd=self.work, env=self.env, code=code, errors=errors)

    def pip(self, *words: str | Path) -> None:
        """Install by the versions that are known to work together; pip's own settings are the machine's."""
        words = ("-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", *words)
        output([self.bin / "python", *words], cwd=self.work)

    def install(self) -> str:
        """The wheel and what it asks for."""
        output([self.python, "-m", "venv", self.bin.parent], cwd=self.work)
        self.pip(self.archives.wheel)
        self.run("python", "-m", "pip", "check")
        home = self.run("python", "-c", "import hdlm; print(hdlm.__file__)").strip()
        if not Path(home).is_relative_to(self.bin.parent):
            raise FailedError(f"hdlm is imported from {home}")
        packages = len(self.run("python", "-m", "pip", "list", "--format", "freeze").splitlines())
        return f"{self.run('python', '--version').strip()}, {packages} packages"

    def version(self) -> str:
        """`hdlm --version` is the wheel's."""
        said = self.run("hdlm", "--version").strip()
        if said != f"hdlm {self.archives.version}":
            raise FailedError(f"hdlm --version says {said!r}, and the wheel is {self.archives.version}")
        return said

    def help(self) -> str:
        """Every command has its help, also as `python -m hdlm`."""
        said = [self.run("hdlm", command, "--help") for command in COMMANDS]
        if self.run("python", "-m", "hdlm", "--help") != self.run("hdlm", "--help"):
            raise FailedError("python -m hdlm --help is not hdlm --help")
        return f"{len(said)} commands"

    def demo(self) -> str:
        """The show, and the page that it leaves."""
        self.run("hdlm", "demo", "--length", "48", "--out", "demo")
        page = self.work / "demo" / "replay.html"
        if not page.is_file() or page.stat().st_size < 10_000:
            raise FailedError(f"{page.name} was not written")
        return f"replay.html, {page.stat().st_size / 1e3:.0f} kB"

    def sample(self) -> str:
        """A seed is a text: by diffusion, and by speculation the text of autoregression."""
        ways = {"": [], "ar": ["--ar"], "speculation": ["--speculate"]}
        texts = {}
        for way, flags in ways.items():
            words = ("sample", "stories", "--prompt", "Tom had", "--length", "16", "--seed", "1", "--json", *flags)
            (found,) = json.loads(self.run("hdlm", *words))["samples"]
            texts[way] = found["text"]
        if not texts[""].startswith("Tom had a") or texts["ar"] != texts["speculation"]:
            raise FailedError(f"texts: {texts}")
        return repr(texts[""])

    def evaluate(self) -> str:
        """A bound on a few rows of the held-out text that comes with the model."""
        words = ("--data", "stories-test", "--metrics", "bound", "--tokens", "2000", "--draws", "1", "--json")
        (cell,) = json.loads(self.run("hdlm", "evaluate", "stories", *words))["cells"]
        found = cell["result"]
        if not 1 < found["value"] < 3:
            raise FailedError(f"{found['name']} = {found['value']} nats per token")
        return f"{found['name']} {found['value']:.2f} ± {found['error']:.2f} nats per token, {found['rows']} rows"

    def serve(self) -> str:
        """Without its extra it says what is missing; with it the server answers, and ends when it is told to."""
        said = self.run("hdlm", "serve", code=2, errors=True)
        if "pip install 'hdlm[serve]'" not in said or said.count("\n") != 1:
            raise FailedError(f"without its extra it says {said!r}")
        self.pip(f"hdlm[serve] @ {self.archives.wheel.resolve().as_uri()}")
        command = [self.bin / "hdlm", "serve", "--port", "0", "--quiet"]
        server = subprocess.Popen(command, cwd=self.work, env=self.env, stderr=subprocess.PIPE, text=True)
        assert server.stderr is not None
        try:
            line = server.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            if found is None:
                raise FailedError(f"hdlm serve says {line!r}")
            text = _asked(found[0])
        finally:
            server.terminate()
            code = server.wait(60)
        if code not in (0, 143):
            raise FailedError(f"hdlm serve ended with {code}")
        return f"{text!r}; ended with {code}"

    def types(self) -> str:
        """What a type checker knows of the installed package, and that it finds what is wrong."""
        checker = Path(sys.executable).with_name("pyright")
        if not checker.exists():
            return "not checked: no pyright beside this Python"
        script = self.work / "typed.py"
        script.write_text(TYPED)
        shown = subprocess.run(
            [checker, "--outputjson", "--pythonpath", self.bin / "python", script],
            cwd=self.work, capture_output=True, text=True, check=False,
        )  # fmt: skip
        found = json.loads(shown.stdout)["generalDiagnostics"]
        lines = TYPED.splitlines()
        told = [lines[one["range"]["start"]["line"]] for one in found if one["severity"] == "error"]
        if len(told) != len(WRONG) or not all(word in line for word, line in zip(WRONG, told, strict=True)):
            raise FailedError("pyright: " + "; ".join(one["message"].splitlines()[0] for one in found))
        return f"pyright finds {len(told)} error, which is one"


def _asked(url: str) -> str:
    """Health, the page, and a text of a server."""
    for path, words in (("/health", ""), ("/", "<html"), ("/v1/models", "stories")):
        with urllib.request.urlopen(url + path, timeout=60) as answer:
            if words not in answer.read().decode():
                raise FailedError(f"{path} does not answer as it should")
    body = json.dumps({"prompt": "Tom had", "max_tokens": 8, "seed": 1}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        (choice,) = json.loads(answer.read())["choices"]
    return choice["text"]


def main() -> int:
    """Check what is in a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the wheel and the sdist are (dist)")
    parser.add_argument("--python", default=sys.executable, help="of the environment (the one that runs this)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work there, and leave it")
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp(prefix="hdlm-smoke-"))
    try:
        archives = Archives(args.dist.resolve())
        place = Place(folder.resolve(), args.python, archives)
        checks = {
            "wheel": archives.files_of_wheel,
            "sdist": archives.files_of_sdist,
            "empty environment": place.install,
        }
        uses = {"--version": place.version, "--help": place.help, "demo": place.demo, "sample": place.sample}
        uses |= {"evaluate": place.evaluate, "serve": place.serve}
        checks |= {f"hdlm {name}": check for name, check in uses.items()}
        return go_through(checks | {"types": place.types})
    except FailedError as error:
        print(f"wheel: {error}", file=sys.stderr)
        return 1
    finally:
        if args.keep is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
