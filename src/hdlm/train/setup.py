"""From a recipe to the objects of a run: text, rows, process, network, and the folder they end in.

Everything that can be wrong with a run is found here, before its first step.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from hdlm.bundle import Bundle, load
from hdlm.config.bundle import BundleConfig
from hdlm.config.model import DenoiserConfig
from hdlm.config.recipe import Recipe
from hdlm.data.corpus import open_corpus
from hdlm.data.packed import Rows, load_rows
from hdlm.data.tokenizer import CorpusTokenizer, make_tokenizer
from hdlm.nn.transformer import Denoiser
from hdlm.theory.process import Process

_COPIES = 4  # a checkpoint holds the weights, their average and two moments


@dataclass(frozen=True)
class Job:
    """All that a run needs but its state."""

    recipe: Recipe
    tokenizer: CorpusTokenizer
    train_rows: Rows
    valid_rows: Rows
    process: Process
    config: BundleConfig
    start: Bundle | None

    def data_identity(self) -> dict[str, int]:
        """Numbers by which a change of the data shows: rows, and a checksum of some of them, of both splits."""
        found = {}
        for name, rows in (("train", self.train_rows), ("valid", self.valid_rows)):
            picked = rows.take(torch.linspace(0, len(rows) - 1, 64).long())
            found |= {f"{name}_rows": len(rows), f"{name}_sum": int((picked * torch.arange(1, 65).unsqueeze(1)).sum())}
        return found

    def validation_rows(self) -> list[list[int]]:
        """The rows that bounds are measured on during training, each up to its end."""
        rows = self.valid_rows.take(torch.arange(min(self.recipe.eval_rows, len(self.valid_rows))))
        return [row[row >= 0].tolist() for row in rows]

    def build_model(self) -> Denoiser:
        """The network, new or from the checkpoint that the recipe starts from."""
        torch.manual_seed(self.recipe.seed)
        model = Denoiser(self.config.model)
        if self.start is not None:
            model.load_state_dict(self.start.model.state_dict())
        return model

    def bundle(self, model: Denoiser) -> Bundle:
        """The model with what it needs to be used."""
        return Bundle(model, self.config, self.tokenizer.tokenizer)


def prepare(
    recipe: Recipe, *, tokenizer_file: Path | None = None, progress: Callable[[str, int], None] | None = None
) -> Job:
    """Read the data, make or find the tokenizer, and settle every size. `tokenizer_file` is that of a run resumed."""
    start = load(recipe.init_from) if recipe.init_from else None
    if tokenizer_file is not None and tokenizer_file.exists():
        tokenizer = make_tokenizer(str(tokenizer_file), [])
    elif start is not None and start.tokenizer is not None:
        tokenizer = _tokenizer_of(start)
    elif Path(recipe.data).suffix in (".npy", ".safetensors") and recipe.tokenizer.startswith("bpe-"):
        raise ValueError(
            f"data = {recipe.data!r} is a matrix of tokens: name the tokenizer that they are of (--tokenizer)"
        )
    else:
        tokenizer = make_tokenizer(recipe.tokenizer, _training_text(recipe))
    train_rows = load_rows(recipe.data, "train", tokenizer, recipe.length, progress=progress)
    valid_rows = load_rows(recipe.data, "valid", tokenizer, recipe.length, progress=progress)
    config = config_of(recipe, tokenizer)
    if start is not None and start.config.model != config.model:
        raise ValueError(
            f"init_from = {recipe.init_from!r} is not accepted: its network is {start.config.model}, not {config.model}"
        )
    for member in recipe.schedules:
        member.schedule(recipe.length).build()
    process = recipe.process.build(tokenizer.vocab_size)
    return Job(recipe, tokenizer, train_rows, valid_rows, process, config, start)


def config_of(recipe: Recipe, tokenizer: CorpusTokenizer) -> BundleConfig:
    """What a run's model folder says of its model."""
    return BundleConfig(
        model=DenoiserConfig(vocab_size=tokenizer.vocab_size, **vars(recipe.model)),
        process=recipe.process,
        hyperschedule=recipe.schedules[0].schedule(recipe.length),
        shifted=recipe.shifted,
        parameterization=recipe.parameterization,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        mixture=tuple(member.schedule(recipe.length) for member in recipe.schedules[1:]),
        next_token=recipe.shifted and recipe.loss.beta1 > 0,
    )


def _training_text(recipe: Recipe):
    """Documents to train a tokenizer on; none are read for one that needs none."""
    yield from open_corpus(recipe.data).documents("train")


def _tokenizer_of(bundle: Bundle) -> CorpusTokenizer:
    assert bundle.tokenizer is not None
    eos = bundle.config.eos_id if bundle.config.eos_id is not None else bundle.config.bos_id
    if eos is None:
        raise ValueError("init_from is not accepted: its config names neither bos_id nor eos_id")
    bos = bundle.config.bos_id if bundle.config.bos_id is not None else eos
    return CorpusTokenizer(bundle.tokenizer, bos_id=bos, eos_id=eos)


def check_folder(folder: Path, job: Job) -> None:
    """Refuse a folder that cannot be written, or that has no room for the checkpoints to be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise ValueError(f"out = {str(folder)!r} is not accepted: it cannot be written ({error.strerror})") from None
    with torch.device("meta"):
        size = 4 * sum(p.numel() for p in Denoiser(job.config.model).parameters())
    needed = size * (_COPIES * (job.recipe.keep + 1) + 2)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ValueError(
            f"out = {str(folder)!r} has {free / 2**20:,.0f} MiB free: this run needs {needed / 2**20:,.0f}"
        )
