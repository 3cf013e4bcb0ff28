"""What a person and a script see of a run: one line at a time, metrics.jsonl, TensorBoard, and wandb if asked for."""

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from hdlm.files import json_text, written_aside
from hdlm.folders import is_there, regular_file
from hdlm.theory.numbers import is_whole

_PATIENCE = 2.0  # seconds of work that nobody needs to be told of
_PAUSE = {True: 0.1, False: 15.0}  # seconds between two lines of progress, by whether they are rewritten in place


def _step_of(line: str) -> float:
    """The step of a line of metrics; infinity for one that was cut off half way, or is no such line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    step = row.get("step") if isinstance(row, dict) else None
    return step if is_whole(step) else math.inf


def wandb_module() -> Any:
    """Weights & Biases, refused where it is not installed."""
    try:
        import wandb  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("--wandb needs: pip install wandb") from None
    return wandb


class Console:
    """What is said on standard error: lines that stay, and one of progress that is rewritten in place.

    That one comes after one that stays, or when nothing was said for a while; where there is no terminal it cannot be
    rewritten, and comes only now and then.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._line_is_open = False
        self._due = time.monotonic() + _PATIENCE

    def line(self, text: str) -> None:
        """The progress line."""
        if self._quiet or time.monotonic() < self._due:
            return
        rewritten = sys.stderr.isatty()
        if rewritten:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            text = "\r" + text[: width - 1].ljust(width - 1)
        print(text, end="" if rewritten else "\n", file=sys.stderr, flush=True)
        self._line_is_open = rewritten
        self._due = time.monotonic() + _PAUSE[rewritten]

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._quiet:
            return
        self.close_line()
        print(text, file=sys.stderr, flush=True)
        self._due = 0.0

    def close_line(self) -> None:
        """End the progress line."""
        if self._line_is_open:
            print(file=sys.stderr)
        self._line_is_open = False


class Log:
    """Writes in the main process; in others it does nothing."""

    def __init__(self, folder: Path, console: Console, *, is_main: bool, first_step: int, wandb: bool) -> None:
        self._is_main, self._console = is_main, console
        self.say, self.line = console.say, console.line
        self._wandb: Any = None
        if not is_main:
            return
        self._path = folder / "metrics.jsonl"
        if is_there(self._path):
            regular_file(self._path)
        self._forget_after(first_step)
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1 if first_step else None)
        if wandb:
            self._wandb = wandb_module().init(project="hdlm", dir=str(folder), resume="allow")

    def _forget_after(self, step: int) -> None:
        """Drop lines past the step that a run resumes from: they will come again."""
        if not self._path.exists():
            return
        lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        with written_aside(self._path) as aside:
            aside.write_text("".join(f"{line}\n" for line in lines if _step_of(line) <= step), encoding="utf-8")

    def metrics(self, step: int, values: dict[str, Any]) -> None:
        """One object of metrics.jsonl, and the same numbers to the boards."""
        if not self._is_main:
            return
        try:
            with self._path.open("a") as file:
                file.write(json_text({"step": step} | values) + "\n")
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None
        for name, value in values.items():
            if isinstance(value, int | float):
                self._board.add_scalar(name, value, step)
            elif isinstance(value, list):
                self._board.add_text(name, "\n\n---\n\n".join(map(str, value)), step)
        if self._wandb is not None:
            self._wandb.log(values, step=step)

    def close(self) -> None:
        """Flush the boards."""
        self._console.close_line()
        if self._is_main:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()
