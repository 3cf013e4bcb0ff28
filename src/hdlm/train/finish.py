"""What a run shows of its model: sample texts on the way, and at the end the folder with its card and loss curve."""

import json
import math
from pathlib import Path

import torch

from hdlm.data.packed import Rows
from hdlm.nn.transformer import Denoiser
from hdlm.train.log import Log
from hdlm.train.setup import Job
from hdlm.train.validate import Bound

PREVIEW_STEPS, PREVIEW_LENGTH = 64, 128


def preview(job: Job, model: Denoiser, *, count: int = 2) -> list[str]:
    """A few short samples in at most about PREVIEW_STEPS steps."""
    first = job.recipe.schedules[0]
    length = job.recipe.length if first.kind == "flat" else min(job.recipe.length, PREVIEW_LENGTH)
    length = min(length, PREVIEW_STEPS) if first.kind == "quench" else length
    rate = None if first.kind in ("quench", "slide") else max(1.0, length / PREVIEW_STEPS)
    was_training = model.training
    model.eval()
    bundle = job.bundle(model)
    samples = bundle.generate(num_samples=count, length=length, rate=rate, seed=job.recipe.seed, stop_at_eos=False)
    model.train(was_training)
    return [job.text.tokenizer.decode(row) for row in samples.tokens]


def unigram_entropy(rows: Rows, count: int, vocab_size: int) -> float:
    """Entropy in nats per token of the first rows' own frequencies: what a model that reads nothing can reach."""
    tokens = rows.take(torch.arange(count))
    counts = torch.bincount(tokens[tokens >= 0], minlength=vocab_size).double()
    share = counts / counts.sum()
    return -torch.special.xlogy(share, share).sum().item()


def finish(job: Job, model: Denoiser, out: Path, bound: Bound, log: Log) -> None:
    """Write the model folder with its card and loss curve, and say how it did."""
    rows = min(job.recipe.eval_rows, len(job.valid_rows))
    entropy = unigram_entropy(job.valid_rows, rows, job.text.vocab_size)
    _draw_curve(out)
    notes = (
        f"\n## Training\n\nRecipe `{job.recipe.name}`, {job.recipe.steps:,} steps of {job.recipe.global_batch} x "
        f"{job.recipe.length} tokens of `{job.recipe.data}`.\n\n"
        f"| | nats per token | perplexity |\n| --- | --- | --- |\n"
        f"| {bound.name}, validation | {bound.value:.4f} ± {bound.error:.4f} | {math.exp(min(bound.value, 50)):.2f} |\n"
        f"| unigram entropy of the same tokens | {entropy:.4f} | {math.exp(entropy):.2f} |\n\n![loss](loss.png)\n"
    )
    job.bundle(model).save(out, notes=notes)
    log.say(f"validation {bound.name}: {bound.value:.4f} nats per token; unigram entropy: {entropy:.4f}")
    log.say(f"model: {out}")


def _draw_curve(out: Path) -> None:
    from matplotlib.figure import Figure

    from hdlm.plots.style import save

    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    for name, label, style in (("loss", "training loss", "-"), ("bound", "validation bound", "o-")):
        points = [(row["step"], row[name]) for row in rows if isinstance(row.get(name), float)]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, linewidth=1.2, markersize=4)
    axes.set_xlabel("step")
    axes.set_ylabel("nats per token")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    save(figure, out / "loss.png")
