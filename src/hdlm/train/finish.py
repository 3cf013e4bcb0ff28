"""What a run shows of its model: sample texts on the way, and at the end the folder with its card and loss curve."""

import json
import math
from pathlib import Path

import torch
from torch import Tensor

from hdlm.config import ScheduleConfig
from hdlm.data.packed import Rows
from hdlm.nn.transformer import Denoiser
from hdlm.sampling.generate import generate
from hdlm.theory.gamma_hybrid import GammaHybrid
from hdlm.theory.parameterization import output_to_clean, output_to_score, score_to_clean
from hdlm.train.log import Log
from hdlm.train.setup import Job
from hdlm.train.validate import Bound

PREVIEW_STEPS, PREVIEW_LENGTH = 64, 128


def preview(job: Job, model: Denoiser, device: torch.device, *, count: int = 2) -> list[str]:
    """A few short samples in at most about PREVIEW_STEPS steps."""
    first, process = job.recipe.schedules[0], job.process
    length = min(job.recipe.length, PREVIEW_LENGTH) if first.kind != "flat" else job.recipe.length
    if first.kind == "quench":
        schedule = ScheduleConfig("quench", min(length, PREVIEW_STEPS)).build()
    else:
        width = min(first.width or length, length)
        rate = max(1.0, length / PREVIEW_STEPS) if first.kind != "slide" else 1.0
        width_setting = None if first.kind == "flat" else width
        schedule = ScheduleConfig(first.kind, length, width=width_setting, rate=rate).build()

    def to_p0(outputs: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        outputs = outputs.float()
        if not isinstance(process, GammaHybrid):
            return outputs.softmax(-1)
        if job.recipe.parameterization == "clean":
            return output_to_clean(process, outputs, xt, t).exp()
        return score_to_clean(process, output_to_score(process, outputs, xt, t), xt, t).exp()

    was_training = model.training
    model.eval()
    tokens = generate(
        model,
        process,
        schedule,
        shifted=job.recipe.shifted,
        batch=count,
        to_p0=to_p0,
        bos_id=job.config.bos_id,
        cache=model.new_cache(count, length + 1),
        device=device,
        generator=torch.Generator(device=device).manual_seed(job.recipe.seed),
    )
    model.train(was_training)
    return [job.text.tokenizer.decode(row) for row in tokens.tolist()]


def unigram_entropy(rows: Rows, count: int, vocab_size: int) -> float:
    """Entropy in nats per token of the first rows' own frequencies: what a model that reads nothing can reach."""
    counts = torch.bincount(rows.take(torch.arange(count)).flatten(), minlength=vocab_size).double()
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
