"""What a run shows of its model: sample texts on the way, and at the end the folder with its card and loss curve."""

import json
import math
from pathlib import Path

import torch

from hdlm.data.corpus import is_set
from hdlm.evaluate.bound import Bound
from hdlm.nn.transformer import Denoiser
from hdlm.train.log import Log
from hdlm.train.setup import Job

PREVIEW_STEPS, PREVIEW_LENGTH = 64, 128


def preview(job: Job, model: Denoiser, *, count: int = 2) -> list[str]:
    """A few short samples in at most about PREVIEW_STEPS steps."""
    bundle, length = job.bundle(model), job.recipe.length
    schedule = bundle.hyperschedule
    if schedule.has_prefix:
        length = min(length, PREVIEW_STEPS if schedule.autoregressive else PREVIEW_LENGTH)
    # Where all of a window is at one level, several tokens a step are what training has shown.
    hurried = schedule.one_level_a_window and not schedule.autoregressive
    rate = max(1.0, length / PREVIEW_STEPS) if hurried else None
    samples = bundle.generate(num_samples=count, length=length, rate=rate, seed=job.recipe.seed, stop_at_eos=False)
    return samples.text


def unigram_entropy(rows: list[list[int]], vocab_size: int) -> float:
    """Entropy in nats per token of the rows' own frequencies: what a model that reads nothing can reach."""
    counts = torch.bincount(torch.tensor([token for row in rows for token in row]), minlength=vocab_size).double()
    share = counts / counts.sum()
    return -torch.special.xlogy(share, share).sum().item()


def finish(job: Job, model: Denoiser, out: Path, bound: Bound, log: Log) -> None:
    """Write the model folder with its card and loss curve, and say how it did."""
    entropy = unigram_entropy(job.validation_rows(), job.tokenizer.vocab_size)
    data = job.recipe.data if is_set(job.recipe.data) else Path(job.recipe.data).name  # where it lies is not for a card
    _draw_curve(out)
    notes = (
        f"\n## Training\n\nRecipe `{job.recipe.name}`, {job.recipe.steps:,} steps of {job.recipe.global_batch} x "
        f"{job.recipe.length} tokens of `{data}`.\n\n"
        f"| | nats per token | perplexity |\n| --- | --- | --- |\n"
        f"| {bound.name}, validation | {bound.value:.4f} ± {bound.error or 0.0:.4f} | {bound.perplexity:.2f} |\n"
        f"| unigram entropy of the same tokens | {entropy:.4f} | {math.exp(entropy):.2f} |\n\n![loss](loss.png)\n"
    )
    job.bundle(model).save(out, notes=notes)
    log.say(f"validation {bound.name}: {bound.value:.4f} nats per token; unigram entropy: {entropy:.4f}")
    log.say(f"model: {out}")


def _draw_curve(out: Path) -> None:
    from matplotlib.figure import Figure

    from hdlm.viz.style import save

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
