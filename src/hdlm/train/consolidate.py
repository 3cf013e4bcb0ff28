"""A model out of a run's checkpoint: its averaged weights, whole again, in one process and without the run's data."""

from pathlib import Path

import torch

from hdlm.bundle import Bundle
from hdlm.data.tokenizer import make_tokenizer
from hdlm.folders import as_path
from hdlm.nn.transformer import Denoiser
from hdlm.train import checkpoint
from hdlm.train.folder import recipe_of
from hdlm.train.setup import config_of
from hdlm.train.state import AVERAGE, checkpoints, load_gathered


def bundle_of(run: str | Path) -> Bundle:
    """The model of the last whole checkpoint of the run in a folder, finished or not, by its averaged weights."""
    run = as_path("run", run)
    recipe, saved = recipe_of(run), checkpoints(run)
    if not saved:
        raise ValueError(f"{run} is not accepted: its run has saved no checkpoint yet")
    tokenizer = make_tokenizer(str(run / "trainer" / "tokenizer.json"), [])
    config = config_of(recipe, tokenizer)
    return Bundle(read_average(saved[-1], Denoiser(config.model)), config, tokenizer.tokenizer)


@torch.no_grad()
def read_average(folder: Path, model: Denoiser) -> Denoiser:
    """Fill a network with the averaged weights of a checkpoint; one process can, whatever others do."""
    tensors = {f"{AVERAGE}{name}": parameter.detach() for name, parameter in model.named_parameters()}
    if checkpoint.is_gathered(folder):
        load_gathered(folder, tensors, whole=False)
        return model
    checkpoint.verify(folder, checkpoint.ALONE)
    checkpoint.load(folder, tensors, whole=False, group=checkpoint.ALONE)
    return model
