"""What an evaluation found, to be read: report.md, report.html and the pictures beside results.json."""

import base64
import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hdlm.evaluate.figure import bound_name, cell_name, data_name, draw_front, draw_positions
from hdlm.evaluate.mauve_score import ENOUGH
from hdlm.files import written_aside

_STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; max-width: 980px; margin: 40px auto; padding: 0 20px; color: #22262e; }
table { border-collapse: collapse; font-size: 14px; margin: 12px 0 24px; } img { max-width: 100%; }
th, td { border-bottom: 1px solid #ddd; padding: 6px 12px; text-align: right; } th { color: #555; font-weight: 600; }
th:first-child, td:first-child { text-align: left; } code { background: #f3f1ec; padding: 1px 4px; border-radius: 4px; }
pre { background: #f7f5f1; padding: 14px; border-radius: 8px; white-space: pre-wrap; font-size: 13px; }
"""


def write_report(folder: Path, about: dict[str, Any], cells: Sequence[dict[str, Any]], samples: Sequence[str]) -> Path:
    """Write report.md and report.html."""
    bounds = [cell for cell in cells if cell["spec"]["kind"] == "bound"]
    drawn = [cell for cell in cells if cell["spec"]["kind"] == "samples"]
    parts = [f"# {about['model']}\n", f"{about['summary']}\n\n`{about['command']}`\n"]
    if bounds:
        parts += ["## Likelihood\n", bound_table(bounds), _bound_notes(bounds)]
        parts.append(_picture(draw_positions(bounds, folder / "positions.png"), "the bound by position"))
    if drawn:
        parts += ["## Samples\n", sample_table(drawn), _sample_notes(drawn)]
        if any("gen_ppl" in cell["result"] for cell in drawn):
            parts.append(_picture(draw_front(drawn, folder / "front.png"), "quality against diversity"))
    if samples:
        shown = "\n\n".join(f"```\n{text[:1500]}\n```" for text in samples)
        parts += ["## The first samples, unselected\n", shown + "\n"]
    text = "\n".join(parts)
    with written_aside(folder / "report.md") as aside:
        aside.write_text(text, encoding="utf-8")
    with written_aside(folder / "report.html") as aside:
        aside.write_text(_page(about["model"], text, folder), encoding="utf-8")
    return folder / "report.md"


def _number(value: float | None, error: float | None = None, digits: int = 3) -> str:
    if value is None:
        return ""
    shown = f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:,.0f}"
    return shown if not error else f"{shown} ± {error:.{digits}f}" if abs(error) < 1000 else f"{shown} ± {error:,.0f}"


def bound_table(cells: Sequence[dict[str, Any]]) -> str:
    """One row per set and bound."""
    head = ["text", "bound", "nats per token", "perplexity", "bits per byte", "ppl per word", "ppl per GPT-2 token"]
    rows = []
    for cell in cells:
        for found in (cell["result"], *cell["result"].get("beside", ())):
            name = data_name(cell) if found is cell["result"] else ""
            ppl = found["perplexity"]
            rows.append(
                [
                    name,
                    bound_name(found),
                    _number(found["value"], found["error"]),
                    _number(ppl, ppl * (found["error"] or 0.0), 2),
                    _number(found.get("bits_per_byte")),
                    _number(found.get("perplexity_per_word"), None, 1),
                    _number(found.get("perplexity_per_gpt2_token"), None, 1),
                    f"{found['tokens']:,}",
                    _number(found["seconds"], None, 1),
                ]
            )
    return _table([*head, "tokens", "seconds"], rows)


def sample_table(cells: Sequence[dict[str, Any]]) -> str:
    """One row per way of drawing."""
    head = ["settings", "gen. perplexity", "entropy", "MAUVE", "distinct-2", "repetition-4", "calls", "tokens/s"]
    rows = []
    for cell in cells:
        found = cell["result"]
        columns = [(found.get(name) or {}) for name in ("gen_ppl", "entropy", "mauve")]
        digits = (1, 3, 3)
        shown = [_number(c.get("value"), c.get("error"), d) for c, d in zip(columns, digits, strict=True)]
        rows.append(
            [
                cell_name(cell),
                *shown,
                _number(found["distinct"]["2"]),
                _number(found["repetition"]["value"]),
                f"{found['stats']['network_calls']:,}",
                f"{found['stats']['tokens_per_second']:,.0f}",
            ]
        )
    return _table(head, rows)


def _bound_notes(cells: Sequence[dict[str, Any]]) -> str:
    draws = sorted({cell["result"]["draws"] for cell in cells})
    shares = {data_name(cell): cell["result"].get("share", 1.0) for cell in cells}
    partial = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share < 1)
    note = f"± is the standard error over rows. Noise draws per row: {', '.join(map(str, draws))}."
    for cell in cells:
        note += " " + above_words(cell) if "source" in cell["result"] else ""
    return note + (f" Evenly spaced rows only: {partial} of the text." if partial else "") + "\n"


def above_words(cell: dict[str, Any]) -> str:
    """How far a bound is from what the text's own source needs."""
    found = cell["result"]["source"]
    error = found["above_per_byte_error"]
    return (
        f"The source of {data_name(cell)} needs {found['nats_per_byte']:.4f} nats per byte; the "
        f"{bound_name(cell['result'])} is {found['above_per_byte']:.4f}"
        + (f" ± {error:.4f}" if error is not None else "")
        + f" above that ({found['above_per_token']:.3f} per token)."
    )


def _sample_notes(cells: Sequence[dict[str, Any]]) -> str:
    first = cells[0]["result"]
    notes = [f"{first['samples']} samples a row, seed {first['seed']}, drawn past any end of text."]
    own = {name: value for name, value in first.get("model_sampling", {}).items() if value not in (1.0, None)}
    if own:
        words = ", ".join(f"{name} {value}" for name, value in own.items())
        notes.append(f"Unless a row says otherwise, drawn as the model's own config has it: {words}.")
    if "gen_ppl" in first:
        notes.append(
            f"Judge: {first['gen_ppl']['judge']}. Low generative perplexity at low entropy is repetition, not quality."
        )
    if "mauve" in first:
        score = first["mauve"]
        notes.append(
            f"MAUVE: {score['featuriser']}, {score['samples']} samples against {score['references']} real texts, "
            f"{score['seeds']} seeds."
            + ("" if min(score["samples"], score["references"]) >= ENOUGH else f" Below {ENOUGH:,} it is mostly noise.")
        )
    return " ".join(notes) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _picture(path: Path, words: str) -> str:
    return f"![{words}]({path.name})\n"


def _page(title: str, text: str, folder: Path) -> str:
    """The few forms of Markdown that a report uses, as HTML with the pictures inside."""
    body, table, code = [], [], None
    for line in [*text.splitlines(), ""]:
        if line.startswith("```"):
            code = [] if code is None else body.append(f"<pre>{html.escape(chr(10).join(code))}</pre>")
        elif code is not None:
            code.append(line)
        elif line.startswith("|"):
            table.append([html.escape(cell.strip()) for cell in line.strip("|").split("|")])
        else:
            if table:
                body.append(_html_table(table))
                table = []
            body.append(_html_line(line, folder))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _html_table(rows: list[list[str]]) -> str:
    head = "".join(f"<th>{cell}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows[2:])
    return f"<table><tr>{head}</tr>{body}</table>"


def _html_line(line: str, folder: Path) -> str:
    picture = re.fullmatch(r"!\[(.*?)\]\((.*?)\)", line)
    if picture:
        data = base64.b64encode((folder / picture.group(2)).read_bytes()).decode()
        return f'<p><img alt="{html.escape(picture.group(1))}" src="data:image/png;base64,{data}"></p>'
    marks = len(line) - len(line.lstrip("#"))
    inside = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(line.lstrip("#").strip()))
    return f"<h{marks}>{inside}</h{marks}>" if marks else f"<p>{inside}</p>" if inside else ""
