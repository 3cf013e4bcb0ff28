"""A network of the laptop recipe's size, trained a little: with and without the cache it writes the same."""

import warnings
from dataclasses import replace

import pytest
import torch

import hdlm
from hdlm import recipes
from hdlm.config import BundleConfig
from hdlm.recipe import MixtureMember
from hdlm.train.loop import train

SCHEDULES = {"block": hdlm.Block(80, 16), "quick": hdlm.Block(80, 16, 4), "slide": hdlm.Slide(80, 16)}
PROMPTS = ["def main(", "import os\n\nclass Reader:\n    def __init__(self, path"]


@pytest.fixture(scope="module", params=[False, True], ids=["aligned", "shifted"])
def bundle(request, tmp_path_factory):
    recipe = replace(
        recipes.laptop(),
        shifted=request.param,
        steps=6,
        schedules=(MixtureMember("block", 16), MixtureMember("slide", 16)),
        eval_rows=4,
        eval_every=6,
        save_every=6,
    )
    folder = tmp_path_factory.mktemp("laptop")
    train(recipe, folder, device="cpu", quiet=True)
    return hdlm.load(folder)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("prompt", [None, PROMPTS], ids=["unconditional", "prompts"])
def test_cached_is_uncached(bundle, schedule, prompt, capsys):
    shares = {}
    for dtype in (torch.float64, torch.float32):
        bundle.model.to(dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*more than the 128.*")
            found = [
                bundle.generate(prompt, hyperschedule=SCHEDULES[schedule], seed=3, cache=cache, stop_at_eos=False)
                for cache in (True, False)
            ]
        same = [a == b for x, y in zip(*(f.tokens for f in found), strict=True) for a, b in zip(x, y, strict=True)]
        shares[dtype] = sum(same) / len(same)
        assert found[0].stats.slots < found[1].stats.slots
    with capsys.disabled():
        print(
            f"\n  {schedule}, prompts {prompt is not None}: {shares[torch.float32]:.1%} of float32 tokens equal", end=""
        )
    assert shares[torch.float64] == 1


def test_the_config_remembers_what_was_trained(bundle):
    config: BundleConfig = bundle.config
    assert [(s.kind, s.width) for s in config.mixture] == [("slide", 16)]
    assert config.next_token == config.shifted
