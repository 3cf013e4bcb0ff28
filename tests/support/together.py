"""What is asked of one process and of several in `tests/evaluate/test_together.py`."""

import json
import sys
from pathlib import Path

import torch

import hdlm
from hdlm.config.sampling import DrawSettings
from hdlm.evaluate.likelihood import estimate
from hdlm.evaluate.mauve_score import Featuriser
from hdlm.evaluate.ordered import ordered_likelihood
from hdlm.evaluate.quality import Panel, assess, draw, features_of
from hdlm.evaluate.sweep import Results
from hdlm.processes import ALONE, World, joined
from hdlm.sampling.generate import exhaust, generate
from hdlm.sampling.request import prompt_request

ROWS = [[(3 * row + 5 * place) % 11 for place in range(9 + row % 2)] for row in range(7)]


class Reader:
    """A judge and a featuriser who need no network."""

    name = "reader"

    def read(self, texts, progress):
        """Nats and tokens: sums over letters, and how many there are."""
        progress(len(texts))
        return [(sum(map(ord, text)) / 100, len(text)) for text in texts]

    def verdict(self, read):
        """All that was read, in order."""
        return Told([[nats, count] for nats, count in read])

    def __call__(self, texts, progress):
        """A vector of each text."""
        return torch.tensor([[float(len(text)), float(ord(text[0]))] for text in texts]).numpy()


class Told:
    """What a judge says."""

    def __init__(self, read):
        self.read = read


def asked(folder: Path, results: Path, world: World = ALONE) -> dict:
    """Texts, bounds, likelihoods and judgements of the model in `folder`, by all processes of a world.

    A cell of what they are goes into `results`.
    """
    bundle = hdlm.load(folder, dtype="float64")
    settings = DrawSettings(seed=5, batch_size=4)
    request = prompt_request(bundle, ["ab", "fad", "c"], num_samples=3, length=10, settings=settings)
    samples = exhaust(generate(bundle, request, watched=False, logprobs=True, world=world))
    few = prompt_request(bundle, ["ab"], length=6, settings=settings)  # fewer rows than processes
    drawn = draw(bundle, {"rate": 2.0}, samples=5, length=8, seed=1, world=world)
    panel = Panel(judge=Reader())  # pyright: ignore[reportArgumentType]
    quality = assess(drawn, panel, lambda *_: None, world=world)
    bound = estimate(bundle, ROWS, draws=2, world=world)
    exact = ordered_likelihood(bundle, ROWS, "certain", world=world)
    reader: Featuriser = Reader()  # pyright: ignore[reportAssignmentType]
    kept = Results(results, {}, writes=world.is_main)
    kept.cell({"of": "everyone"}, lambda: {"ranks": world.gather(world.rank)})
    return {
        "tokens": samples.tokens,
        "logprobs": samples.logprobs,
        "count": samples.stats.tokens,
        "few": exhaust(generate(bundle, few, watched=False, world=world)).tokens,
        "drawn": drawn.tokens,
        "entropy": quality["entropy"]["value"],
        "judged": quality["gen_ppl"]["read"],
        "bound": [bound.value, bound.error, *bound.row_nats, *bound.positions],
        "exact": [exact.value, *exact.row_nats],
        "features": features_of(samples.text, reader, "", lambda *_: None, world).tolist(),
        "divided": world.divide(list(range(10)), lambda own: [2 * item for item in own]),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined("cpu") as those:
        Path(sys.argv[2], f"{those.rank}.json").write_text(
            json.dumps(asked(Path(sys.argv[1]), Path(sys.argv[3]), those))
        )
