"""Training on custom hyperschedules: what batches hold, and a model that is trained, saved, loaded and used by one."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.networks import network
from support.runs import text_folder, tiny_recipe

import hdlm
from hdlm.cli.main import main
from hdlm.config.mixture import MixtureMember
from hdlm.config.process import ProcessConfig
from hdlm.config.recipe import LossSettings
from hdlm.data.packed import Rows
from hdlm.objectives.bounds import training_objective
from hdlm.theory.reading import CleanReading
from hdlm.train.batch import Batches
from hdlm.train.dry_run import dry_run
from hdlm.train.loss import LossModule

SCRAMBLED = [[4] * 6, [4, 1, 4, 2, 4, 3], [4, 0, 2, 2, 4, 3], [1, 0, 2, 0, 0, 3], [0, 0, 0, 0, 0, 3], [0] * 6]
IN_ORDER = [[4] * 6, [2, 3, 4, 4, 4, 4], [0, 3, 3, 4, 4, 4], [0, 1, 2, 4, 3, 4], [0, 0, 0, 4, 3, 2], [0] * 6]
PROCESSES = {
    "absorbing": ProcessConfig("absorbing"),
    "gamma": ProcessConfig("gamma", gamma=0.1),
    "epsilon": ProcessConfig("epsilon", epsilon=0.1),
}


def batches(levels, process="absorbing", *, beta1=0.5, ended=False):
    member = MixtureMember("custom", levels=tuple(map(tuple, levels)))
    recipe = tiny_recipe("", length=6, schedules=(member,), process=PROCESSES[process])
    recipe = replace(recipe, loss=replace(recipe.loss, beta1=beta1))
    tokens = np.random.default_rng(0).integers(0, 11, (16, 6))
    if ended:
        tokens[:, 2:] = -1
    made = PROCESSES[process].build(11)
    return Batches(recipe, Rows(tokens), made, bos_id=0, device=torch.device("cpu")), made


@pytest.mark.parametrize("levels", [SCRAMBLED, IN_ORDER], ids=["scrambled", "in order"])
@pytest.mark.parametrize("beta1", [0.0, 0.5])
def test_every_batch_counts_each_position_once(levels, beta1):
    """On average, and in sum exactly, whichever windows a step has; shapes never change."""
    source, _ = batches(levels, beta1=beta1)
    found = [source.at(torch.arange(8 * step, 8 * step + 8), global_batch=8) for step in range(12)]
    for batch in found:
        mean = batch.active.weight.mean(1)
        torch.testing.assert_close(mean, torch.ones(8))
    assert len({batch.slots.token.shape for batch in found}) == 1
    assert len({len(batch.active.slot) for batch in found}) == (1 if levels is SCRAMBLED else 2)
    assert all((batch.settled is not None) == (beta1 > 0 and levels is IN_ORDER) for batch in found)


@pytest.mark.parametrize("process", PROCESSES)
def test_losses_are_finite_where_positions_rest_and_rows_end(process):
    source, made = batches(SCRAMBLED, process, ended=True)
    module = LossModule(network("plain").float(), training_objective(CleanReading(made)))
    batch = source.at(torch.arange(8), global_batch=8)
    assert (batch.active.weight == 0).any()
    loss = module(batch).active
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


def test_toy_steps_and_refusals():
    member = MixtureMember("custom", levels=tuple(map(tuple, hdlm.Slide(80, 8).levels.tolist())))
    assert dry_run(tiny_recipe("", length=80, schedules=(member, MixtureMember("flat")))).losses[0] > 0
    with pytest.raises(ValueError, match=r"schedules\.0\.levels has 80 columns: .* length = 24"):
        tiny_recipe("", schedules=(member,))
    recipe = tiny_recipe("", length=80, schedules=(member,), process=ProcessConfig("absorbing"))
    model, loss = replace(recipe.model, conditioned=False, weighted_embedding=False), LossSettings(averaged=True)
    assert replace(recipe, schedules=(MixtureMember("flat"),), model=model, loss=loss).loss.averaged
    with pytest.raises(ValueError, match="and for no custom schedule"):
        replace(recipe, model=model, loss=loss)


@pytest.mark.parametrize("levels", [SCRAMBLED, IN_ORDER], ids=["scrambled", "in order"])
def test_a_model_trained_by_a_file_of_levels_is_used_by_it(levels, tmp_path, capsys):
    file, out = tmp_path / "levels.json", tmp_path / "run"
    file.write_text(json.dumps(levels))
    words = "--length 6 --tokenizer bytes --steps 2 --global_batch 4 --micro_batch 4 --eval_every 2 --eval_rows 4"
    words += " --model.width 16 --model.heads 2 --model.layers 1 --log_every 1 --loss.averaged false"
    data = text_folder(tmp_path / "text")
    asked = ["train", "laptop", "--data", data, "--out", str(out), "--schedules", f"custom:{file}:2,flat", "--json"]
    assert main([*asked, *words.split()]) == 0
    bound = json.loads(capsys.readouterr().out)["bound"]
    assert bound["schedule"] == "custom"
    file.unlink()
    bundle = hdlm.load(out)
    assert bundle.hyperschedule == hdlm.Custom(levels)
    assert [one.kind for one in bundle.config.schedules] == ["custom", "flat"]
    assert "levels" not in json.loads((out / "config.json").read_text())["mixture"][0]
    assert bundle.perplexity("ab", samples=2).schedule == "custom"
    for prompt, length in ((None, 6), ("ab", 4), ("abc", 2)):
        samples = bundle.generate(prompt, length=length, seed=0, stop_at_eos=False)
        assert samples.settings[0]["hyperschedule"]["kind"] == "custom"
        assert samples.settings[0]["steps"] == len(levels) - 1
        assert len(samples.tokens[0]) == length + len(prompt or "")
    with pytest.raises(ValueError, match="has 6 positions"):
        bundle.generate(length=7)
    with pytest.raises(ValueError, match="rate and width are not accepted for custom"):
        bundle.generate(rate=2.0)
