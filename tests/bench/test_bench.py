"""What `hdlm bench` counts, against torch's own counter, and what it prints."""

import json
from dataclasses import replace

import pytest
import torch
from support.bundles import LETTERS, letters
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import hdlm
from hdlm.bench import paper
from hdlm.bench.cost import RowCount, Work, count_row, forward_work, step_work, trunk_parameters
from hdlm.bench.plan import plan, vocabulary_of
from hdlm.bench.roofline import Ceiling, measure_ceiling
from hdlm.bench.sampling import SampleRow, cases, growth_cases, net_of_attention
from hdlm.bench.training import cpu_cases, gpu_cases, make_stepper
from hdlm.cli.main import main
from hdlm.config.model import DenoiserConfig
from hdlm.config.recipes import all_recipes
from hdlm.nn.transformer import Denoiser
from hdlm.theory.layout import training_layout


@pytest.mark.parametrize("style", [{}, {"gated": True, "mlp_bias": False, "hidden": 96}])
def test_operations_are_those_that_torch_counts(style):
    config = DenoiserConfig(100, layers=2, width=32, heads=2, conditioned=False, **style)
    model, rows, length = Denoiser(config), 3, 24
    slots = training_layout(hdlm.Flat(length), shifted=False).fill(
        *(torch.zeros(rows, length, dtype=torch.long) for _ in range(2)), torch.ones(rows, length), hdlm.Absorbing(100)
    )
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(slots).sum().backward()
    row = count_row(slots.layout, settled_loss=False)
    assert row == RowCount(slots=length, pairs=length**2, head_slots=length)
    work = step_work(config, row, rows=rows, parameters=model.num_parameters)
    assert work.operations == counter.get_total_flops()
    count = {name: rows * value for name, value in vars(row).items()}
    forward = forward_work(config, **count, calls=1, keys=0, width=4)
    assert work.operations == 3 * forward.operations
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and name != "embedding")
    assert forward.bytes == 4 * matrices


def test_a_cached_pass_reads_its_keys_and_values():
    config = DenoiserConfig(100, layers=2, width=32, heads=4, kv_heads=2, conditioned=False)
    settings = {"calls": 1, "slots": 1, "pairs": 10, "head_slots": 1, "width": 2}
    with_keys, without = (forward_work(config, keys=keys, **settings) for keys in (10, 0))
    model = Denoiser(config)
    cache = model.new_cache(1, 9)
    assert with_keys.bytes - without.bytes == 2 * (cache.keys.numel() + cache.values.numel())


def test_the_floor_is_the_slower_of_the_two():
    work = Work(operations=100, bytes=10)
    assert Ceiling(operations=10, bandwidth=10).floor(work) == 10
    assert Ceiling(operations=1000, bandwidth=2).floor(work) == 5
    found = measure_ceiling(torch.device("cpu"))
    assert min(found.operations, found.bandwidth) > 1e8


def row(label, length, seconds, *, calls=100, keys=100, samples=8):
    stats, speed = {"network_calls": calls, "keys": keys}, samples * length / seconds
    return SampleRow(label, samples, length, calls, seconds, (seconds, seconds), seconds, 0.1, 0.1, stats, speed)


def test_attention_is_taken_out_by_a_fit():
    rows = [row("x", 2**k, (0.5 + 1e-3 * 2**k) * 100, keys=100 * 2**k) for k in range(4, 9)]
    assert net_of_attention(rows) == pytest.approx([0.5] * 5)
    assert net_of_attention(rows[:1]) == pytest.approx([0.516])


def test_every_line_of_the_papers_tables_has_a_case_or_none():
    labels = {case.label for case in gpu_cases()}
    assert {line.ours.format(width=256) for line in paper.TRAINING if line.ours} <= labels
    labels = {case.label for case in cases(1024, 256, 16)}
    assert {line.ours.format(width=256) for line in paper.CACHE if line.ours} <= labels
    found = {name: ours for name, _, ours in paper.cache_table([row("gamma, block 256", 1024, 1.5)], 256)}
    assert found["gamma-hybrid, block d/4, aligned + KV-caching"] == 1.5
    assert found["SEDD"] is None


@pytest.mark.parametrize("case", cpu_cases(), ids=lambda case: case.label)
def test_every_training_case_takes_a_step(case):
    stepper = make_stepper(case, 100, torch.device("cpu"))
    done = stepper.step()
    assert not done.skipped
    stepper.rewind()
    assert stepper.step().active_tokens == done.active_tokens


@pytest.mark.parametrize("case", cpu_cases(), ids=lambda case: case.label)
def test_costs_are_of_what_the_trainer_feeds(case):
    """The plan's layouts are the trainer's, and slots that carry a loss are those that it scores."""
    batches = make_stepper(case, 100, torch.device("cpu"), backend="reference").batches
    batch = batches.at(torch.arange(case.batch), global_batch=case.batch)
    found = count_row(batch.slots.layout, settled_loss=case.recipe.loss.beta1 > 0)
    scored = sum(part.x0.shape[1] for part in (batch.active, batch.settled) if part is not None)
    assert (found.slots, found.head_slots) == (batch.slots.token.shape[1], scored)
    cost = plan(replace(case.recipe, tokenizer="bytes"))
    assert (cost.slots, cost.active) == (found.slots, batch.active.x0.shape[1])


def test_every_recipe_has_a_price():
    for recipe in all_recipes().values():
        cost = plan(recipe)
        assert cost.hours > 0
        assert cost.flops > 6 * trunk_parameters(DenoiserConfig(cost.vocab_size, **vars(recipe.model))) * cost.tokens


def test_a_tokenizer_file_tells_its_size(tmp_path):
    path = tmp_path / "mine.json"
    letters().save(str(path))
    assert vocabulary_of(str(path)) == len(LETTERS) + 1, "the end of text is added"
    assert vocabulary_of("stories/tokenizer.json") == hdlm.load("stories").config.model.vocab_size
    with pytest.raises(ValueError, match="its size is not known here"):
        vocabulary_of(str(tmp_path / "nowhere.json"))


def test_uncached_texts_grow_only_so_far():
    found = growth_cases([16, 32, 64], 8, longest_uncached=32)
    assert [case.schedule.length for case in found if not case.cache] == [16, 16, 32, 32]


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["train", "--only", "AR", "--only", "gamma, slide", "--turns", "2"], "AR"),
        (["sample", "--only", "epsilon, block 4, rate 4", "--only", "AR", "--turns", "1", "--samples", "1"], "epsilon"),
        (["growth", "--longest", "256", "--turns", "1", "--samples", "1"], "block 16"),
        (["train", "--backend", "reference", "--only", "AR", "--turns", "1"], "AR"),
    ],
)
def test_bench(words, first, tmp_path, capsys):
    out = tmp_path / "figures.json"
    assert main(["bench", *words, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "share" in shown
    written = json.loads(out.read_text())
    assert written["rows"][0]["label"].startswith(first)
    assert written["setting"]["torch"] == torch.__version__
    assert 0 < written["rows"][0]["share"] < 1
    assert out.with_suffix(".png").exists() == (words[0] != "train")
    assert (
        main(
            ["bench", *words[:1], "--only", "AR" if words[0] != "growth" else "block 16, no", "--turns", "1", "--json"]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["rows"]


@pytest.mark.parametrize(
    "words",
    [["--only", "nothing"], ["--turns", "0"], ["--out", "/proc/x.json"], ["--device", "tpu"], ["--backend", "slow"]],
)
def test_bad_input_is_one_line(words, capsys):
    assert main(["bench", "train", *words]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
