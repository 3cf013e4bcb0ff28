"""A small network of the laptop recipe's making, trained a little: with and without the cache it writes the same."""

from dataclasses import replace

import pytest
import torch
from support.runs import text_folder

import hdlm
from hdlm.config import recipes
from hdlm.config.bundle import BundleConfig
from hdlm.config.recipe import MixtureMember
from hdlm.train.loop import train

SCHEDULES = {"block": hdlm.Block(40, 16), "quick": hdlm.Block(40, 16, 4), "slide": hdlm.Slide(40, 16)}
PROMPTS = ["", "the number", "is followed by a longer prompt than"]


@pytest.fixture(scope="module", params=[False, True], ids=["aligned", "shifted"])
def bundle(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("laptop")
    laptop = recipes.laptop()
    recipe = replace(
        laptop,
        model=replace(laptop.model, width=64, heads=2),
        data=text_folder(folder / "data"),
        tokenizer="bytes",
        shifted=request.param,
        autoregressive_first=0.5 if request.param else 0.0,
        steps=4,
        schedules=(MixtureMember("block", 16), MixtureMember("slide", 16)),
        eval_rows=4,
        eval_every=4,
        save_every=4,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDLM_CACHE", str(folder / "cache"))
        train(recipe, folder / "run", device="cpu", quiet=True)
    return hdlm.load(folder / "run")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_cached_is_uncached(bundle, schedule, capsys):
    shares, how = {}, {"hyperschedule": SCHEDULES[schedule], "seed": 3, "stop_at_eos": False}
    for dtype in (torch.float64, torch.float32):
        bundle.model.to(dtype)
        found = [bundle.generate(PROMPTS, cache=cache, **how) for cache in (True, False)]
        same = [a == b for x, y in zip(*(f.tokens for f in found), strict=True) for a, b in zip(x, y, strict=True)]
        shares[dtype] = sum(same) / len(same)
        assert found[0].stats.slots < found[1].stats.slots
    with capsys.disabled():
        print(f"\n  {schedule}: {shares[torch.float32]:.1%} of float32 tokens equal", end="")
    assert shares[torch.float64] == 1


def test_the_config_remembers_what_was_trained(bundle):
    config: BundleConfig = bundle.config
    assert [(s.kind, s.width) for s in config.mixture] == [("slide", 16)]
    assert config.next_token == config.shifted
