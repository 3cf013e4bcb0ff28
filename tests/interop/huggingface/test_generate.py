"""What an exported folder writes: greedy text that is hdlm's token for token, and draws that follow the same law."""

import itertools

import pytest
import torch
from support.exported import chi_square, exported, scored

import hdlm
from hdlm.config.schedule import ScheduleConfig
from hdlm.sampling.request import DrawSettings
from hdlm.sampling.warping import warp

pytest.importorskip("transformers")
PROMPTS = [[1, 2, 3, 4, 5], [8], [9, 10]]
ALIGNED = {"shifted": False, "next_token": False}


def opened(bundle, folder):
    from hdlm.interop.huggingface.modeling_hdlm import HDLMForCausalLM

    hdlm.export(bundle, folder)
    return HDLMForCausalLM.from_pretrained(folder).eval()


def batch_of(prompts, *, shifted):
    """Prompts with BOS where it is due, padded on the left: tokens and attention mask."""
    rows = [[3, *prompt] if shifted else prompt for prompt in prompts]
    longest = max(map(len, rows))
    tokens = torch.tensor([[6] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": tokens, "attention_mask": mask}


def texts(rows, prompts, model):
    """What follows the prompts, up to the end of text."""
    new = rows[:, max(map(len, prompts)) + model.config.shifted :].tolist()
    return [row[: row.index(7)] if 7 in row else row for row in new]


def ours(samples):
    return [tokens[length:] for tokens, length in zip(samples.tokens, samples.prompt_lengths, strict=True)]


@pytest.mark.parametrize("name", ["adaLN, weighted", "llama", "no MASK"])
@pytest.mark.parametrize("seed", [0, 1])
def test_one_after_the_other_is_our_text(name, seed, tmp_path):
    bundle = exported(name, seed=seed)
    model = opened(bundle, tmp_path)
    rows = model.generate(**batch_of(PROMPTS, shifted=True), max_new_tokens=12, do_sample=False)
    assert texts(rows, PROMPTS, model) == ours(bundle.generate(PROMPTS, kind="quench", length=12, temperature=0))


WINDOWS = [
    ("unconditioned", {}, "block:4", {}),
    ("unconditioned", {}, "block", {"rate": 2.0}),
    ("adaLN, weighted", {}, "block:5", {}),
    ("adaLN, weighted", {}, "slide:4", {}),
    ("adaLN, weighted", {}, "flat", {}),
    ("gated adaLN", {"noise": "loglinear"}, "slide:6", {"rate": 0.5}),
    ("adaLN, plain head", {"noise": "cosine"}, "flat", {}),
    ("wide heads, head for MASK", {}, "flat", {"rate": 3.0}),
    ("timeless", {"noise": "geometric", **ALIGNED}, "block:4", {"rate": 2.0}),
    ("unconditioned", ALIGNED, "flat", {"rate": 0.7}),
    ("unconditioned", {"block_causal": True, **ALIGNED}, "block", {}),
    ("unconditioned", {"block_causal": True, **ALIGNED}, "block:4", {"rate": 2.0}),
    ("unconditioned", {}, "block:4", {"threshold": 0.3}),
    ("unconditioned", {}, "slide:4", {"threshold": 0.2}),
    ("llama", {}, "slide:6", {"threshold": 0.2}),
    ("scores", {}, "block:4", {}),
]


@pytest.mark.filterwarnings("ignore:.*outside what this network was trained on")
@pytest.mark.parametrize(("name", "changes", "schedule", "how"), WINDOWS)
def test_greedy_windows_are_our_text(name, changes, schedule, how, tmp_path):
    """Prompts of several lengths, ends of text, 1 to 11 new tokens; with a cache and without."""
    bundle = scored() if name == "scores" else exported(name, **changes)
    model = opened(bundle, tmp_path)
    kind, _, width = schedule.partition(":")
    for length, use_cache in itertools.product((11, 3), (True, False)):
        said = {"kind": kind, "width": int(width) if width else None, "rate": how.get("rate")}
        said |= {"threshold": how.get("threshold"), "sampler": "certain", "temperature": 0}
        wanted = ours(bundle.generate(PROMPTS, length=length, **said))
        named = {f"hdlm_{word}": value for word, value in how.items()}
        batch = batch_of(PROMPTS, shifted=model.config.shifted)
        named |= {"hdlm_schedule": schedule, "hdlm_sampler": "certain", "use_cache": use_cache}
        rows = model.generate(**batch, max_new_tokens=length, do_sample=False, **named)
        assert texts(rows, PROMPTS, model) == wanted
        after = [row[row.index(7) :] for row in rows[:, batch["input_ids"].shape[1] :].tolist() if 7 in row]
        assert all(set(row) == {7} for row in after)  # what follows an end of text is padding


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"mixture": (ScheduleConfig("flat", 24),)}, [1, None, 2, None, None, 4, None]),
        ({"mixture": (ScheduleConfig("flat", 24),)}, [None, 1, 2, 4]),
        ({}, [1, 2, 4, None, 5, None]),
        (ALIGNED | {"mixture": (ScheduleConfig("flat", 24),)}, [None, None, 2, None, 5]),
        (ALIGNED | {"block_causal": True, "width": 8}, [1, 2, 4, 5, 6, 8, 9, 10, 1, None, None, 2]),
    ],
)
@pytest.mark.parametrize("rate", [1.0, 2.0])
def test_greedy_gaps_are_our_text(changes, row, rate, tmp_path):
    """By a network that takes what is given around a gap for certain, although its window is noisy."""
    bundle = exported("adaLN, weighted", **changes)
    model = opened(bundle, tmp_path)
    wanted = bundle.infill(row, rate=rate, sampler="certain", temperature=0).tokens[0]
    begins = [3] if model.config.shifted else []
    tokens = torch.tensor([[6] * 2 + begins + [11 if token is None else token for token in row]])
    mask = (torch.arange(tokens.shape[1]) >= 2).long().unsqueeze(0)
    tokens, mask = tokens.expand(2, -1), mask.expand(2, -1)
    how = {"hdlm_schedule": "flat", "hdlm_sampler": "certain", "hdlm_rate": rate, "do_sample": False}
    found = model.generate(tokens, attention_mask=mask, max_new_tokens=9, **how)
    assert found.tolist() == [[6] * 2 + begins + wanted] * 2


def test_steps_are_a_rate_said_otherwise(tmp_path):
    model = opened(exported("adaLN, plain head"), tmp_path)
    how = {"hdlm_schedule": "block:8", "hdlm_sampler": "certain", "max_new_tokens": 16, "do_sample": False}
    one, other = (model.generate(**how, **said).tolist() for said in ({"hdlm_steps": 4}, {"hdlm_rate": 2.0}))
    assert one == other != model.generate(**how, hdlm_steps=1).tolist()


def exact_pair(model, *, certain):
    """The law [11, 11] of two tokens of one block after BOS, at one token a step, by enumeration."""
    mask, law = model.config.mask_token_id, torch.zeros(11, 11, dtype=torch.float64)

    def at(tokens, t):
        return model.denoise(torch.tensor([[3, *tokens]]), torch.full((2,), t).double(), 1)[0].softmax(-1)

    first = at([mask, mask], 1.0)
    if certain:  # the surer of the two, then the other
        place = int(first.amax(-1).argmax())
        for token in range(11):
            second = at([token, mask] if place == 0 else [mask, token], 0.5)
            row = first[place, token] * second[1 - place]
            law[token if place == 0 else slice(None), slice(None) if place == 0 else token] += row
        return law
    halves = at([mask, mask], 0.5)
    law += (first[0].outer(first[1]) + halves[0].outer(halves[1])) / 4  # both in the first step, or in the second
    for token in range(11):
        law[token] += first[0, token] * at([token, mask], 0.5)[1] / 4
        law[:, token] += first[1, token] * at([mask, token], 0.5)[0] / 4
    return law


@pytest.mark.parametrize("sampler", ["original", "posterior", "certain"])
def test_draws_follow_the_law(sampler, tmp_path):
    """5,000 pairs against their exact law. Noise conditions this network, so that the step matters."""
    model = opened(exported("adaLN, plain head", eos_id=None), tmp_path)
    torch.manual_seed(1)
    with torch.no_grad():
        law = exact_pair(model, certain=sampler == "certain")
    said = {"hdlm_schedule": "block:2", "hdlm_sampler": sampler, "max_new_tokens": 2, "num_return_sequences": 5000}
    pairs = model.generate(torch.tensor([[3]]), do_sample=True, **said)[:, 1:]
    counts = torch.zeros(121, dtype=torch.float64)
    counts.scatter_add_(0, pairs[:, 0] * 11 + pairs[:, 1], torch.ones(5000, dtype=torch.float64))
    torch.testing.assert_close(law.sum().item(), 1.0)
    assert chi_square(counts, law.flatten()) < 4


@pytest.mark.parametrize("warping", [{"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.7}, {"top_k": 6, "top_p": 0.8}])
def test_truncated_draws_follow_ours(warping, tmp_path):
    """One token by a window and one by autoregression, 3,000 times each."""
    bundle = exported("adaLN, plain head", eos_id=None)
    model = opened(bundle, tmp_path)
    torch.manual_seed(2)
    with torch.no_grad():
        windows = model.denoise(torch.tensor([[3, 1, 11]]), torch.ones(1).double(), 2)[0, 0]
        next_token = model(torch.tensor([[3, 1]])).logits[0, -1]
    settings = DrawSettings(**warping)
    for logits, said in ((windows, {"hdlm_schedule": "block:1", "hdlm_sampler": "original"}), (next_token, {})):
        law = warp(logits.log_softmax(-1), settings).exp()
        how = {"max_new_tokens": 1, "num_return_sequences": 3000, "do_sample": True}
        found = model.generate(torch.tensor([[3, 1]]), **how, **({"top_k": 0} | warping), **said)[:, -1]
        counts = torch.bincount(found, minlength=11).double()
        assert counts[law == 0].sum() == 0
        assert chi_square(counts, law) < 4


def test_a_models_own_wishes_are_its_defaults(tmp_path):
    bundle = exported("adaLN, plain head", sampling=DrawSettings(sampler="certain", threshold=0.4, temperature=0))
    model = opened(bundle, tmp_path)
    wanted = ours(bundle.generate([[1, 2]], kind="block", length=9))
    found = model.generate(torch.tensor([[3, 1, 2]]), hdlm_schedule="block", max_new_tokens=9)
    assert texts(found, [[1, 2]], model) == wanted
    assert model.generation_config.do_sample is False
    other = exported("adaLN, plain head", sampling=DrawSettings(sampler="remask", eta=0.1))
    with pytest.raises(ValueError, match="hdlm_sampler = 'remask' is not accepted"):
        opened(other, tmp_path / "other").generate(torch.tensor([[3]]), hdlm_schedule="block")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"hdlm_schedule": "blocks"}, "write block:16, slide:16 or flat"),
        ({"hdlm_schedule": "flat:3"}, "write block:16, slide:16 or flat"),
        ({"hdlm_schedule": "block:0"}, "needs a width, as in block:16"),
        ({"hdlm_schedule": "slide"}, "needs a width, as in block:16"),
        ({"hdlm_schedule": "block", "hdlm_sampler": "euler"}, "hdlm_sampler = 'euler' is not accepted for absorbing"),
        ({"hdlm_schedule": "block", "hdlm_rate": 0}, "hdlm_rate = 0 is not accepted"),
        ({"hdlm_schedule": "block", "hdlm_rate": 1, "hdlm_steps": 2}, "not together with hdlm_steps"),
        ({"hdlm_schedule": "block", "hdlm_steps": 0}, "hdlm_steps = 0 is not accepted"),
        ({"hdlm_schedule": "block", "hdlm_threshold": 0.5}, "hdlm_threshold = 0.5 is not accepted"),
        ({"hdlm_schedule": "block", "num_beams": 2, "streamer": 1}, "num_beams, streamer: not accepted together"),
        ({"hdlm_schedule": "flat", "max_new_tokens": 24}, "26 columns are more than the 25"),
        ({"hdlm_rate": 2.0}, "hdlm_rate: not accepted without hdlm_schedule"),
    ],
)
def test_what_is_not_accepted_is_refused_by_name(said, message, tmp_path):
    model = opened(exported("unconditioned"), tmp_path)
    with pytest.raises(ValueError, match=message):
        model.generate(torch.tensor([[3, 1]]), **said)


def test_networks_that_do_not_fit_are_refused_by_name(tmp_path):
    aligned = opened(exported("unconditioned", **ALIGNED), tmp_path / "aligned")
    with pytest.raises(ValueError, match="this network is aligned, so that it has no law of the next token"):
        aligned.generate(torch.tensor([[1]]))
    with pytest.raises(ValueError, match="this network has no MASK to begin from"):
        opened(exported("no MASK"), tmp_path / "llama").generate(torch.tensor([[3]]), hdlm_schedule="block:4")
    gamma = opened(exported("adaLN, weighted"), tmp_path / "gamma")
    with pytest.raises(ValueError, match="'posterior' is not accepted for gamma noise: it must be original or certain"):
        gamma.generate(torch.tensor([[3]]), hdlm_schedule="block:4")
    blocks = opened(exported("unconditioned", block_causal=True, **ALIGNED), tmp_path / "blocks")
    with pytest.raises(ValueError, match="this network has block:4 and flat"):
        blocks.generate(torch.tensor([[1]]), hdlm_schedule="block:5")


def test_inputs_that_do_not_fit_are_refused_by_name(tmp_path):
    model = opened(exported("unconditioned"), tmp_path)
    with pytest.raises(ValueError, match='input_ids hold MASK: pass hdlm_schedule="flat"'):
        model.generate(torch.tensor([[3, 11]]))
    with pytest.raises(ValueError, match='gaps are filled together, by hdlm_schedule="flat"'):
        model.generate(torch.tensor([[3, 11]]), hdlm_schedule="block")
    with pytest.raises(ValueError, match="the gap cannot be filled: its window holds 5 tokens"):
        model.generate(torch.tensor([[3, 11, 1, 1, 1, 1]]), hdlm_schedule="flat")
    with pytest.raises(ValueError, match="prompts must be padded on the left"):
        model.generate(torch.tensor([[3, 1]]), attention_mask=torch.tensor([[1, 0]]), hdlm_schedule="block")
    with pytest.raises(ValueError, match="this network begins with BOS"):
        model.generate(torch.zeros(1, 0, dtype=torch.long), hdlm_schedule="block")


def test_the_network_is_asked_no_more_when_every_row_has_ended(tmp_path, monkeypatch):
    model, asked = opened(exported("wide heads, head for MASK"), tmp_path), []
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.eye(12)[7])  # whatever stands there, the end of text follows
    denoise = model.denoise
    monkeypatch.setattr(model, "denoise", lambda *given, **how: asked.append(1) or denoise(*given, **how))
    how = {"hdlm_schedule": "block:4", "hdlm_sampler": "certain", "max_new_tokens": 16, "do_sample": False}
    assert model.generate(torch.tensor([[3, 1]]), **how).tolist() == [[3, 1] + 16 * [7]]
    assert len(asked) == 4


@pytest.mark.parametrize(("noise", "share"), [(None, 0.5), ("cosine", 1 - 0.5**0.5)])
def test_as_many_masks_are_left_as_the_noise_says(noise, share, tmp_path, monkeypatch):
    """After the first of two steps, of 8,000 tokens; five standard deviations."""
    model, seen = opened(exported("adaLN, plain head", noise=noise, eos_id=None), tmp_path), []
    denoise = model.denoise
    monkeypatch.setattr(model, "denoise", lambda x, *rest, **how: seen.append(x.clone()) or denoise(x, *rest, **how))
    how = {"hdlm_schedule": "block:2", "hdlm_sampler": "original", "max_new_tokens": 2, "num_return_sequences": 4000}
    model.generate(torch.tensor([[3]]), do_sample=True, **how)
    assert abs((seen[1][:, 1:] == 11).double().mean() - share) < 0.028
