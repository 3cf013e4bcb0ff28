"""Text appearing out of noise, live in a terminal; a few plain snapshots where the output is no terminal."""

import textwrap
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from hdlm.sampling.prompts import Pieces
from hdlm.sampling.request import Request
from hdlm.sampling.results import Frame

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

_MASK = "░"
_STYLES = {  # of tokens, by what they are
    "given": "bold",
    "masked": "bright_black",
    "just written": "bold black on green",
    "just corrected": "bold black on yellow",
    "may still change": "cyan",
    "settled": "default",
}
MOST_ROWS, SNAPSHOTS = 4, 8


class Watch:
    """A live view of up to MOST_ROWS samples. `pause`: least seconds between two steps, so that eyes can follow.

    `eos_id`: the end of text, behind which nothing is shown.
    """

    def __init__(
        self,
        pieces: Pieces,
        mask_id: int | None,
        given: dict[int, list[bool]],
        steps: int,
        *,
        console: Console | None = None,
        pause: float = 0.04,
        eos_id: int | None = None,
    ) -> None:
        self._pieces, self._mask_id, self._given, self._steps = pieces, mask_id, given, steps
        self._console = console if console is not None else Console(highlight=False)
        self._pause = pause if self._console.is_terminal else 0.0
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="ellipsis")
        self._eos_id = eos_id
        self._seen = 0
        self._unprinted: Frame | None = None

    def __enter__(self) -> "Watch":
        if self._console.is_terminal:
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._console.is_terminal:
            self._live.__exit__(*error)
        elif error[0] is None and self._unprinted is not None:  # texts may end before the schedule does
            self._print(self._unprinted)

    def see(self, frame: Frame) -> None:
        """Show one step."""
        self._seen += 1
        if self._console.is_terminal:
            self._live.update(self._picture(frame), refresh=True)
            time.sleep(self._pause)
        elif self._seen == 1 or self._seen * SNAPSHOTS // self._steps != (self._seen - 1) * SNAPSHOTS // self._steps:
            self._print(frame)
        else:
            self._unprinted = frame

    def _tokens(self, frame: Frame, row: int) -> list[tuple[str, str]]:
        """(text, kind) of every token that is worth showing: up to the window's end."""
        number = frame.rows[row]
        given = self._given[number]
        window = frame.window[row].tolist()
        tokens, levels = frame.tokens[row].tolist(), frame.levels[row].tolist()
        changed = dict(zip(window, frame.window_changed[row].tolist(), strict=True))
        before = dict(zip(window, frame.before[row].tolist(), strict=True))
        shown = []
        for position in range(min(window[-1] + 1, len(given))):
            token = tokens[position]
            if token == self._eos_id and not given[position]:
                break
            if token == self._mask_id:
                shown.append((_MASK, "masked"))
                continue
            kind = "given" if given[position] else "settled" if levels[position] == 0 else "may still change"
            if changed.get(position):
                kind = "just written" if before[position] == self._mask_id else "just corrected"
            shown.append((self._pieces(token), kind))
        return shown

    def _picture(self, frame: Frame) -> Group:
        parts: list[Text | Rule] = []
        rows = range(min(len(frame.rows), MOST_ROWS))
        room = max(1, (self._console.height - 4) // len(rows) - 1)
        for row in rows:
            text = Text(overflow="fold")
            for piece, kind in self._tokens(frame, row):
                text.append(piece, _STYLES[kind])
            # What does not fit goes at the top: the writing is at the bottom.
            lines = text.wrap(self._console, self._console.width)[-room:]
            parts += [Rule(f"sample {frame.rows[row] + 1}", style="bright_black"), Text("\n").join(lines)]
        legend = Text()
        for kind, style in _STYLES.items():
            legend.append(f" {_MASK} " if kind == "masked" else " a ", style).append(f" {kind} ", "dim")
        done = self._seen / max(self._steps, 1)
        bar = Text("━" * round(30 * done), "green").append("━" * (30 - round(30 * done)), "bright_black")
        return Group(*parts, Rule(style="bright_black"), bar.append(f" step {self._seen} of {self._steps}"), legend)

    def _print(self, frame: Frame) -> None:
        self._unprinted = None
        for row in range(min(len(frame.rows), MOST_ROWS)):
            tokens = self._tokens(frame, row)
            text = "".join(f"~{piece}~" if kind == "just corrected" else piece for piece, kind in tokens)
            head = f"step {self._seen}/{self._steps}" + (f", sample {frame.rows[row] + 1}" if row else "") + ": "
            lines = [part for line in text.splitlines() for part in (textwrap.wrap(line, 76) or [""])]
            print(head + "(░ masked, ~corrected~)" if self._seen == 1 and not row else head, file=self._console.file)
            print("\n".join(f"  {line}" for line in lines), file=self._console.file, flush=True)


def watching(bundle: "Bundle", request: Request, **settings: Any) -> Watch:
    """A view of what a request writes; `settings` as of `Watch`."""
    given = {
        number: [token is not None for token in row]
        for batch in request.batches
        for number, row in zip(batch.numbers, batch.rows, strict=True)
    }
    eos_id = bundle.config.eos_id if request.settings.stop_at_eos else None
    return Watch(Pieces(bundle.tokenizer), bundle.process.mask_id, given, request.steps, eos_id=eos_id, **settings)
