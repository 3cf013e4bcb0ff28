"""The validation bound during training: fixed rows, fixed stratified times, a standard error."""

from dataclasses import dataclass

import torch

from hdlm.objectives.choose import Validation
from hdlm.train.batch import Batches
from hdlm.train.distributed import World, gather_no_more
from hdlm.train.loss import LossModule


@dataclass(frozen=True)
class Bound:
    """Nats per token, with the standard error over rows."""

    value: float
    error: float
    name: str


@torch.no_grad()
def validate(
    module: LossModule, batches: Batches, validation: Validation, *, rows: int, micro_batch: int, world: World
) -> Bound:
    """The mean bound over the first `rows` samples, shared among the processes."""
    was_training = module.training
    module.eval()
    sums = torch.zeros(6, dtype=torch.float64, device=world.device)
    # Every process runs the same number of batches, or sharded ones would wait for each other: some rows count twice
    # in the work and once in the sum.
    places = torch.arange(world.rank, world.size * -(-rows // world.size), world.size)
    for chosen in places.split(micro_batch):
        indices, counts = chosen.clamp(max=rows - 1), (chosen < rows).double().to(world.device)
        batch = batches.at(indices, global_batch=rows, member=0, shuffled=False)
        loss, tokens = (module(batch, judge=validation.objective).double() * counts.unsqueeze(1)).unbind(1)
        parts = (loss, tokens, loss.square(), loss * tokens, tokens.square(), counts)
        sums += torch.stack([part.sum() for part in parts])
    gather_no_more(module)
    total, tokens, squares, products, lengths, count = world.sum(sums).tolist()
    module.train(was_training)
    mean = total / tokens
    # Of a ratio of sums: the spread of what each row has above its share.
    spread = max(0.0, squares - 2 * mean * products + mean**2 * lengths) * count / max(1.0, count - 1)
    # Without noise in the likelihood itself the prior has nothing to add.
    prior = 0.0 if validation.name.startswith("exact") else validation.process.prior_kl()
    return Bound(mean + prior, spread**0.5 / tokens, validation.name)
