"""What a person and a script see of a run: one line at a time, metrics.jsonl, TensorBoard, and wandb if asked for."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from hdlm.files import written_aside


def _step_of(line: str) -> float:
    """The step of a line of metrics; infinity for one that was cut off half way."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")


class Log:
    """Writes in the main process; in others it does nothing."""

    def __init__(self, folder: Path, *, is_main: bool, first_step: int, wandb: bool, quiet: bool) -> None:
        self._is_main, self._quiet = is_main, quiet or not is_main
        self._line_is_open = False
        self._wandb: Any = None
        if not is_main:
            return
        self._path = folder / "metrics.jsonl"
        self._forget_after(first_step)
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1 if first_step else None)
        if wandb:
            try:
                import wandb as wandb_module  # pyright: ignore[reportMissingImports]
            except ImportError:
                raise ValueError("--wandb needs: pip install wandb") from None
            self._wandb = wandb_module.init(project="hdlm", dir=str(folder), resume="allow")

    def _forget_after(self, step: int) -> None:
        """Drop lines past the step that a run resumes from: they will come again."""
        if not self._path.exists():
            return
        kept = [line for line in self._path.read_text().splitlines() if _step_of(line) <= step]
        with written_aside(self._path) as aside:
            aside.write_text("".join(f"{line}\n" for line in kept))

    def metrics(self, step: int, values: dict[str, Any]) -> None:
        """One object of metrics.jsonl, and the same numbers to the boards."""
        if not self._is_main:
            return
        with self._path.open("a") as file:
            file.write(json.dumps({"step": step} | values) + "\n")
        for name, value in values.items():
            if isinstance(value, int | float):
                self._board.add_scalar(name, value, step)
            elif isinstance(value, list):
                self._board.add_text(name, "\n\n---\n\n".join(map(str, value)), step)
        if self._wandb is not None:
            self._wandb.log(values, step=step)

    def line(self, text: str) -> None:
        """The progress line: rewritten in place on a terminal."""
        if not sys.stderr.isatty():
            self.say(text)
        elif not self._quiet:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            print("\r" + text[: width - 1].ljust(width - 1), end="", file=sys.stderr, flush=True)
            self._line_is_open = True

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._quiet:
            return
        if self._line_is_open:
            print(file=sys.stderr)
        print(text, file=sys.stderr, flush=True)
        self._line_is_open = False

    def close(self) -> None:
        """Flush the boards."""
        if self._line_is_open:
            print(file=sys.stderr)
        if self._is_main:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()
