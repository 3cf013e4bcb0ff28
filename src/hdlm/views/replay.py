"""A page that plays generation again: one HTML file with everything inside, to be opened anywhere.

The page itself is replay.html beside this file; here it gets its data.
"""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from hdlm.files import written_aside
from hdlm.theory.hyperschedule import Custom, Hyperschedule
from hdlm.views.history import History
from hdlm.writing.prompts import Pieces
from hdlm.writing.write import Samples

_SLOT = "/*DATA*/"


def write_replay(path: str | Path, samples: Samples, history: History, *, title: str) -> Path:
    """Write the page."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{str(path)!r} is not accepted: a replay's name must end in .html")
    page = resources.files("hdlm.views").joinpath("replay.html").read_text(encoding="utf-8")
    data = json.dumps(replay_data(samples, history, title=title), ensure_ascii=False, separators=(",", ":"))
    # Inside a script element only "<" could end it.
    with written_aside(path) as aside:
        aside.write_text(page.replace(_SLOT, data.replace("<", "\\u003c")), encoding="utf-8")
    return path


def replay_data(samples: Samples, history: History, *, title: str) -> dict[str, Any]:
    """What the page shows, as plain numbers and strings."""
    bundle = samples.bundle
    mask_id = bundle.process.mask_id
    piece = Pieces(bundle.tokenizer)
    used: set[int] = set()
    texts = samples.text if bundle.tokenizer is not None else [""] * len(samples.tokens)
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
                "changes": [
                    [c.step, c.place, c.token, None if c.confidence is None else round(c.confidence, 4)]
                    for c in sample.changes
                ],
                "schedule": _schedule(sample.batch.schedule) | {"steps": sample.steps},
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
        "seed": samples.seed,
    }


def _schedule(schedule: Hyperschedule) -> dict[str, Any]:
    """A schedule as the page reads it: the step at which each position begins to descend, or all levels."""
    found: dict[str, Any] = {"name": repr(schedule), "maxLevel": schedule.max_level}
    if isinstance(schedule, Custom):
        return found | {"levels": schedule.levels.tolist()}
    # levels[step, i] = clamp(entry[i] + maxLevel - step, 0, maxLevel): position i is clean after entry[i] + maxLevel.
    entry = [0] * schedule.length
    for step in schedule.walk():
        for place, level in enumerate(step.next_levels.tolist(), start=step.start):
            if level == 0:
                entry[place] = step.index + 1 - schedule.max_level
    return found | {"entry": entry}
