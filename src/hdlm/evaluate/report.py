"""What an evaluation found, to be read: report.md, report.html and the pictures beside results.json.

Names and samples come from users and models: in the page they are text, whatever they hold.
"""

import base64
import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from hdlm.evaluate.figure import bound_name, cell_name, data_name, draw_front, draw_positions
from hdlm.evaluate.mauve_score import ENOUGH
from hdlm.files import files_written_aside

_STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; max-width: 980px; margin: 40px auto; padding: 0 20px; color: #22262e; }
table { border-collapse: collapse; font-size: 14px; margin: 12px 0 24px; } img { max-width: 100%; }
th, td { border-bottom: 1px solid #ddd; padding: 6px 12px; text-align: right; } th { color: #555; font-weight: 600; }
th:first-child, td:first-child { text-align: left; } code { background: #f3f1ec; padding: 1px 4px; border-radius: 4px; }
pre { background: #f7f5f1; padding: 14px; border-radius: 8px; white-space: pre-wrap; font-size: 13px; }
pre code { background: none; padding: 0; }
"""


def write_report(folder: Path, about: dict[str, Any], cells: Sequence[dict[str, Any]]) -> None:
    """Write report.md and report.html with their pictures: all of the old report are there, or all of the new one."""
    with files_written_aside(folder) as aside:
        _write(aside, about, cells)


def _write(folder: Path, about: dict[str, Any], cells: Sequence[dict[str, Any]]) -> None:
    bounds = [cell for cell in cells if cell["spec"]["kind"] == "bound"]
    drawn = [cell for cell in cells if cell["spec"]["kind"] == "samples"]
    parts = [f"# {plain(about['model'])}\n", f"{about['summary']}\n\n{code(about['command'])}\n"]
    pictures = []
    if bounds:
        parts += ["## Likelihood\n", bound_table(bounds), _bound_notes(bounds)]
        pictures.append(draw_positions(bounds, folder / "positions.png"))
        parts.append(f"![the bound by position]({pictures[-1].name})\n")
    if drawn:
        parts += ["## Samples\n", sample_table(drawn), _sample_notes(drawn)]
        if any("gen_ppl" in cell["result"] for cell in drawn):
            pictures.append(draw_front({"": drawn}, folder / "front.png"))
            parts.append(f"![quality against diversity]({pictures[-1].name})\n")
        samples = [block(text[:1500]) for text in drawn[0]["result"]["first"]]
        parts += ["## The first samples, unselected\n", "\n\n".join(samples) + "\n"]
    text = "\n".join(parts)
    (folder / "report.md").write_text(text, encoding="utf-8")
    (folder / "report.html").write_text(page(about["model"], text, pictures), encoding="utf-8")


def page(title: str, text: str, pictures: Sequence[Path]) -> str:
    """Markdown as one HTML file: HTML in it stays text, and of all images only these pictures are shown, inlined."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    sources = {picture.name: base64.b64encode(picture.read_bytes()).decode() for picture in pictures}
    for token in (inline for block in tokens for inline in block.children or ()):
        if token.type == "image":
            token.attrSet("src", f"data:image/png;base64,{sources.get(str(token.attrGet('src')), '')}")
    body = markdown.renderer.render(tokens, markdown.options, {})
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}</body></html>\n"
    )


def plain(text: str) -> str:
    """Text that Markdown takes as it is."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", text)


def _ticks(text: str, least: int) -> str:
    """More backticks in a row than a text has anywhere."""
    return "`" * max([least, *(1 + len(run) for run in re.findall("`+", text))])


def code(text: str) -> str:
    """Text as code within a line."""
    ticks = _ticks(text, 1)
    return f"{ticks}{text}{ticks}" if len(ticks) == 1 else f"{ticks} {text} {ticks}"


def block(text: str) -> str:
    """Text as a block of code."""
    ticks = _ticks(text, 3)
    return f"{ticks}\n{text}\n{ticks}"


def number(value: float | None, error: float | None = None, digits: int = 3) -> str:
    """A number with its error, where there are such."""
    if value is None:
        return ""
    shown = [f"{x:.{digits}f}" if abs(x) < 1000 else f"{x:,.0f}" for x in (value, error or 0.0)]
    return " ± ".join(shown) if error else shown[0]


def named_bounds(cells: Sequence[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All bounds of all texts, the first of each with the text's name."""
    for cell in cells:
        yield data_name(cell), cell["result"]
        for found in cell["result"].get("beside", ()):
            yield "", found


def quality_numbers(found: dict[str, Any]) -> list[str]:
    """Generative perplexity, entropy and MAUVE with their errors, as far as they were measured."""
    measured = [(found.get(name) or {}, digits) for name, digits in (("gen_ppl", 1), ("entropy", 3), ("mauve", 3))]
    return [number(part.get("value"), part.get("error"), digits) for part, digits in measured]


def bound_table(cells: Sequence[dict[str, Any]]) -> str:
    """One row per set and bound."""
    head = ["text", "bound", "nats per token", "perplexity", "bits per byte", "ppl per word", "ppl per GPT-2 token"]
    rows = [
        [
            plain(name),
            bound_name(found),
            number(found["value"], found["error"]),
            number(found["perplexity"], (found["perplexity"] or 0.0) * (found["error"] or 0.0), 2),
            number(found.get("bits_per_byte")),
            number(found.get("perplexity_per_word"), digits=1),
            number(found.get("perplexity_per_gpt2_token"), digits=1),
            f"{found['tokens']:,}",
            number(found["seconds"], digits=1),
        ]
        for name, found in named_bounds(cells)
    ]
    return markdown_table([*head, "tokens", "seconds"], rows)


def sample_table(cells: Sequence[dict[str, Any]]) -> str:
    """One row per way of drawing."""
    head = ["settings", "gen. perplexity", "entropy", "MAUVE", "distinct-2", "repetition-4", "calls", "tokens/s"]
    rows = []
    for cell in cells:
        found, stats = cell["result"], cell["result"]["stats"]
        counts = (f"{stats['network_calls']:,}", f"{stats['tokens_per_second']:,.0f}")
        variety = (number(found["distinct"]["2"]), number(found["repetition"]["value"]))
        rows.append([plain(cell_name(cell)), *quality_numbers(found), *variety, *counts])
    return markdown_table(head, rows)


def _bound_notes(cells: Sequence[dict[str, Any]]) -> str:
    draws = sorted({cell["result"]["draws"] for cell in cells})
    notes = [f"± is the standard error over rows. Noise draws per row: {', '.join(map(str, draws))}."]
    notes += [plain(above_words(cell)) for cell in cells if "source" in cell["result"]]
    shares = {plain(data_name(cell)): cell["result"].get("share", 1.0) for cell in cells}
    partial = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share < 1)
    notes += [f"Evenly spaced rows only: {partial} of the text."] if partial else []
    return " ".join(notes) + "\n"


def above_words(cell: dict[str, Any]) -> str:
    """How far a bound is from what the text's own source needs."""
    found = cell["result"]["source"]
    above = number(found["above_per_byte"], found["above_per_byte_error"], 4)
    return (
        f"The source of {data_name(cell)} needs {found['nats_per_byte']:.4f} nats per byte; the "
        f"{bound_name(cell['result'])} is {above} above that ({number(found['above_per_token'])} per token)."
    )


def _sample_notes(cells: Sequence[dict[str, Any]]) -> str:
    first = cells[0]["result"]
    notes = [f"{first['samples']} samples a row, seed {first['seed']}, drawn past any end of text."]
    own = {name: value for name, value in first.get("model_sampling", {}).items() if value not in (1.0, None)}
    if own:
        words = ", ".join(f"{name} {value}" for name, value in own.items())
        notes.append(f"Unless a row says otherwise, drawn as the model's own config has it: {words}.")
    if "gen_ppl" in first:
        judge = plain(first["gen_ppl"]["judge"])
        notes.append(f"Judge: {judge}. Low generative perplexity at low entropy is repetition, not quality.")
    if "mauve" in first:
        score = first["mauve"]
        notes.append(
            f"MAUVE: {score['featuriser']}, {score['samples']} samples against {score['references']} real texts, "
            f"{score['seeds']} seeds."
            + ("" if min(score["samples"], score["references"]) >= ENOUGH else f" Below {ENOUGH:,} it is mostly noise.")
        )
    return " ".join(notes) + "\n"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
