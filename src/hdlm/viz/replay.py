"""A page that plays generation again: one HTML file with everything inside, to be opened anywhere.

The page itself is replay.html beside this file; here it gets its data.
"""

from importlib import resources
from pathlib import Path
from typing import Any

import torch

from hdlm.files import json_text, written_aside
from hdlm.sampling.prompts import Pieces
from hdlm.sampling.results import Samples
from hdlm.theory.hyperschedule import Hyperschedule
from hdlm.viz.history import History, SampleHistory

_SLOT = "/*DATA*/"


def write_replay(path: str | Path, samples: Samples, history: History, *, mask_id: int | None, title: str) -> Path:
    """Write the page. `mask_id`: the process's MASK, which is no token; None where nothing is masked."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{str(path)!r} is not accepted: a replay's name must end in .html")
    page = resources.files("hdlm.viz").joinpath("replay.html").read_text(encoding="utf-8")
    data = replay_data(samples, history, mask_id=mask_id, title=title)
    text = json_text(data, ensure_ascii=False, separators=(",", ":"))
    # Inside a script element only "<" could end it.
    with written_aside(path) as aside:
        aside.write_text(page.replace(_SLOT, text.replace("<", "\\u003c")), encoding="utf-8")
    return path


def replay_data(samples: Samples, history: History, *, mask_id: int | None, title: str) -> dict[str, Any]:
    """What the page shows, as plain numbers and strings."""
    piece = Pieces(samples.tokenizer)
    used: set[int] = set()
    texts = samples.text if samples.tokenizer is not None else [""] * len(samples)
    rows = []
    for number in sorted(history.samples):
        sample = history.samples[number]
        used |= {token for token in sample.first if token != mask_id} | {change.token for change in sample.changes}
        rows.append(
            {
                "start": sample.start,
                "length": len(samples.tokens[number]),
                "given": [token is not None for token in sample.row],
                "first": sample.first,
                "changes": sample.changes,
                "schedule": _schedule(sample) | {"steps": sample.steps},
                "text": texts[number],
                "ended": samples.ended[number],
            }
        )
    return {
        "title": title,
        "mask": mask_id,
        "pieces": {str(token): piece(token) for token in sorted(used) if token != mask_id},
        "samples": rows,
        "stats": samples.stats.to_json(),
        "seed": str(samples.seed),  # a page's numbers are exact up to 2^53 only
    }


def _schedule(sample: SampleHistory) -> dict[str, Any]:
    """A schedule as the page reads it: the step at which each position begins to descend, or else all levels.

    Found by walking, so that the matrix of levels of a long text is not built. In speculation it is the sample's own.
    """
    schedule: Hyperschedule = sample.batch.schedule
    found, top = {"name": repr(schedule), "maxLevel": schedule.max_level}, schedule.max_level
    if sample.settled:
        late = [sample.steps] * (schedule.length - len(sample.settled))  # what was not written before the end
        return found | {"entry": [*sample.settled[: schedule.length], *late]}
    entry = torch.zeros(schedule.length, dtype=torch.long)
    for step in schedule.walk():
        entry[step.start : step.stop][step.next_levels == 0] = step.index + 1 - top
    for step in schedule.walk():
        for index, levels in ((step.index, step.levels), (step.index + 1, step.next_levels)):
            if not torch.equal((entry[step.start : step.stop] + top - index).clamp(0, top), levels):
                return found | {"levels": schedule.levels.tolist()}  # not a level a step
    return found | {"entry": entry.tolist()}
