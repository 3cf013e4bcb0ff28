"""Prompts and texts with gaps, from the command line and from Python."""

import random

import hdlm
from fuzz.answers import check_samples
from fuzz.commands import command_plan
from fuzz.plan import Plan
from fuzz.sandbox import Box
from fuzz.templates import MODELS
from hdlm.sampling.prompts import MASK_SIGN

_PIECES = (
    "a", "abc", " ", "  ", "", "ab cd", "[[gap:1]]", "[[gap:2]]", "[[gap:3]]", "[[gap:0]]", "[[gap:-1]]", "[[gap:99]]",
    "[[gap:]]", "[[gap", "[[gap:1", "[gap:1]]", "[[GAP:1]]", "[[gap:1]][[gap:1]]", "[[gap: 2]]", "[[gap:2.0]]",
    "[[gap:٢]]", "[[gap:1e1]]", "[[gap:99999999999999999999]]", "[[[gap:1]]]", "[[gap:[[gap:1]]]]", "\n", "z", "é",
    "😀", "\0", "<|eos|>", "]]", "[[", "\udcff", "[[gap:" + "9" * 5000 + "]]", "abcdefghij" * 3,
    "[[gap]]", "[[gap]]", "[[gap:1-3]]", "[[gap:2-2]]", "[[gap:3-1]]", "[[gap:0-2]]", "[[gap:4-]]", "[[gap:-4]]",
    "[[gap:1-9]]b[[gap:1-9]]", "[[gap:1-2-3]]", "[[gap:2-99]]", "[[gap:1-" + "9" * 30 + "]]", "[[gap]]a" * 7,
)  # fmt: skip
_OPEN = ("ab[[gap]]cd", "a[[gap:1-3]]b", "ab[[gap:2-4]]c[[gap:1]]d")  # whole texts, which pieces seldom make


def make(rng: random.Random, box: Box) -> Plan:
    """Pieces of text and of gaps in any order."""
    pieces = "".join(rng.choice(_PIECES) for _ in range(rng.choice((1, 1, 2, 3, 4))))
    text = rng.choice(_OPEN) if rng.random() < 0.15 else pieces
    model = box.copy(rng.choice(MODELS), "model")
    how = rng.choice(("command", "command", "generate", "infill", "stream"))
    if how == "command":
        prompts = [text] if rng.random() < 0.8 else [text, rng.choice(_PIECES)]
        flags = [part for one in prompts for part in ("--prompt", one)]
        flags += rng.choice(([], ["--length", "4"], ["--rate", "2"], ["--num-samples", "2"], ["--sampler", "certain"]))
        return command_plan(["sample", model, *flags, "--seed", "5", "--json"], box)
    if how == "infill":
        return Plan(
            f"infill({text[:60]!r})", call=lambda: _infilled(model, text), check=lambda found: _check(found, text)
        )
    bundle_call = "generate" if how == "generate" else "stream"
    given = text if rng.random() < 0.7 else [text, "abc"]
    return Plan(
        f"{bundle_call}({str(given)[:60]!r})",
        call=lambda: _written(model, how, given),
        check=lambda rows: check_samples(rows, count=None, length=4),
    )


def _infilled(model: str, text: str) -> list[list[str]]:
    bundle = hdlm.load(model)
    return [bundle.infill(text, seed=2).text for _ in range(2)]


def _check(found: list[list[str]], text: str) -> None:
    """What stands outside the gaps is as it was; the same seed fills them alike."""
    assert found[0] == found[1], "the same seed filled the gaps in another way"
    kept = [part.strip() for part in text.split("[[gap") for part in (part.split("]]", 1)[-1],) if part.strip()]
    at = 0
    for part in kept:
        at = found[0][0].find(part, at)
        assert at >= 0, f"{part!r} is not in {found[0][0]!r}"


def _written(model: str, how: str, prompt: str | list[str]) -> list[dict]:
    bundle = hdlm.load(model)
    if how == "stream":
        frames = list(bundle.stream(prompt, length=4, seed=2))
        assert frames, "no frame"
        assert all(MASK_SIGN not in text for text in frames[-1].text), "the last frame holds MASK"
    return bundle.generate(prompt, length=4, seed=2).to_json()
