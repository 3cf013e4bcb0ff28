"""The Python interface: public classes, functions and methods with the arguments of their real signatures."""

import inspect
import math
import random
import re
from collections.abc import Callable
from typing import Any

import torch

import hdlm
from fuzz import pool
from fuzz.answers import check_numbers, check_samples
from fuzz.plan import Plan
from fuzz.sandbox import Box
from fuzz.templates import MODELS, tiny_recipe
from hdlm.config.build import RULES
from hdlm.theory.hyperschedule import Hyperschedule
from hdlm.theory.noise import Noise
from hdlm.theory.process import Process

N = 11
_LEVELS = (
    [[2, 2, 2], [1, 2, 2], [0, 1, 1], [0, 0, 0]],
    [[1, 1], [0, 1], [0, 0]],
    [[3], [0]],
    torch.tensor([[1, 1], [0, 0]]),
)
TWO_MODELS = "two models"  # stands for them until they are loaded
LIKELY: dict[str, Callable[[random.Random], Any]] = {
    "prompt": lambda r: r.choice((None, "abc", ["a", "bc"], [[1, 2]], "")),
    "num_samples": lambda r: r.choice((1, 2)),
    "length": lambda r: r.choice((1, 3, 6)),
    "hyperschedule": lambda r: r.choice((None, None, hdlm.Flat(4), hdlm.Block(6, 2), hdlm.Quench(3))),
    "kind": lambda r: r.choice((None, None, "flat", "block", "slide")),
    "width": lambda r: r.choice((None, 2, 3)),
    "rate": lambda r: r.choice((None, 1.0, 0.5, 2)),
    "sampler": lambda r: r.choice((None, None, *RULES)),
    "eta": lambda r: r.choice((None, None, 0.1)),
    "threshold": lambda r: r.choice((None, None, 0.5)),
    "temperature": lambda r: r.choice((None, 0, 0.7)),
    "top_k": lambda r: r.choice((None, 1, 3)),
    "top_p": lambda r: r.choice((None, 0.5, 1)),
    "precision": lambda r: r.choice(("float64", "float32")),
    "seed": lambda r: r.randrange(100),
    "backend": lambda r: r.choice((None, "reference")),
    "text": lambda r: r.choice(("ab [[gap:2]] cd", "a[[gap:1-3]]b", "[[gap:3]]", "abc")),
    "texts": lambda r: r.choice(("abc def", ["abc", "ghij a"])),
    "token_ids": lambda r: _tokens(r),
    "path": lambda r: "saved",
    "name": lambda r: "model",
    "device": lambda r: r.choice(("cpu", None, torch.device("cpu"))),
    "dtype": lambda r: r.choice((None, torch.float64, torch.float32)),
    "samples": lambda r: r.choice((1, 2)),
    "models": lambda r: TWO_MODELS,
    "folder": lambda r: r.choice((None, "saved")),
    "max_tokens": lambda r: r.choice((None, 8)),
    "encoding": lambda r: r.choice(("utf-8", "latin-1", "nothing")),
    "judge": lambda r: None,
    "logprobs": lambda r: r.choice((True, False, 2)),
    "draws": lambda r: 1,
    "batch_size": lambda r: r.choice((1, 32)),
    "vocab_size": lambda r: N,
    "noise": lambda r: r.choice((None, hdlm.Linear(), hdlm.LogLinear())),
    "gamma": lambda r: r.choice((0.3, 0, 1)),
    "epsilon": lambda r: r.choice((0.1, 0)),
    "eps": lambda r: 1e-3,
    "sigma_min": lambda r: 1e-3,
    "sigma_max": lambda r: 20.0,
    "levels": lambda r: r.choice(_LEVELS),
    "t": lambda r: r.choice((torch.tensor(0.5), torch.full((2, 4), r.random()), 0.5)),
    "s": lambda r: torch.tensor(0.25),
    "x0": lambda r: _tokens(r),
    "xt": lambda r: _tokens(r),
    "p0": lambda r: torch.full((2, 4, N), 1 / N),
    "shape": lambda r: r.choice(((2, 3), (1,))),
    "step": lambda r: 0,
    "generator": lambda r: r.choice((None, torch.Generator().manual_seed(1))),
    "tokenizer": lambda r: r.choice((True, False)),
}
_OWN_METHODS = ("generate", "stream", "infill", "perplexity", "logits", "save", "to")


def _tokens(rng: random.Random) -> torch.Tensor:
    return torch.tensor([[rng.randrange(N) for _ in range(4)] for _ in range(2)])


def arguments(rng: random.Random, made: Callable, *, nasty: int, box: Box) -> dict[str, Any]:
    """Keywords for a call by its signature, `nasty` of them odd; what has a default is often left to it."""
    names = [
        name
        for name, parameter in inspect.signature(made).parameters.items()
        if name not in ("self", "cls") and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    odd = set(rng.sample(names, min(nasty, len(names))))
    found = {}
    for name in names:
        default = inspect.signature(made).parameters[name].default
        if name in odd:
            places = name in ("path", "name", "folder") and rng.random() < 0.5
            found[name] = box.place(rng) if places else pool.python_value(rng)
        elif default is inspect.Parameter.empty or name in ("length", "seed", "samples", "draws"):
            found[name] = LIKELY.get(name, pool.python_value)(rng)
        elif rng.random() < 0.2:
            found[name] = LIKELY[name](rng) if name in LIKELY else not default if isinstance(default, bool) else default
    return found


def make(rng: random.Random, box: Box) -> Plan:
    """One call, or an object made and then asked."""
    return rng.choices((_bundle_call, _made, _process_call, _function, _recipe, _train), (50, 25, 12, 8, 4, 4))[0](
        rng, box
    )


def _plan(title: str, words: dict[str, Any], call: Callable[[], Any], check, writes: tuple[str, ...] = ()) -> Plan:
    shown = ", ".join(f"{name}={_shown(value)[:60]}" for name, value in words.items())
    endless = any(_is_huge(value) or value == "fifo" for value in words.values() if not hasattr(value, "dtype"))
    return Plan(f"{title}({shown})", call=call, check=check, writes=writes, endless=endless)


def _shown(value: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _is_huge(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return isinstance(value, range)
    return abs(value) >= pool.HUGE or 0 < abs(value) < 1e-6


def _bundle_call(rng: random.Random, box: Box) -> Plan:
    """A method of a bundle."""
    known = [name for name in vars(hdlm.Bundle) if not name.startswith("_") and callable(getattr(hdlm.Bundle, name))]
    name = rng.choices(known, [12 if one == "generate" else 4 if one in _OWN_METHODS else 3 for one in known])[0]
    model = box.copy(rng.choice([one for one in MODELS if one != "tokens"]), "model")
    words = arguments(rng, getattr(hdlm.Bundle, name), nasty=rng.choice((0, 1, 1, 2)), box=box)

    def call() -> Any:
        bundle = hdlm.load(model)
        found = getattr(bundle, name)(**words)
        if name == "stream":
            return list(found)
        spent = any(hasattr(value, "__next__") for value in words.values())
        if isinstance(found, hdlm.Samples) and isinstance(words.get("seed"), int) and not spent:
            assert getattr(bundle, name)(**words).tokens == found.tokens, "the same seed gave another text"
        return found

    def check(found: Any) -> None:
        if isinstance(found, hdlm.Samples):
            _check_generated(found, words)
        elif isinstance(found, torch.Tensor):
            assert torch.isfinite(found).all(), f"{name} gave numbers that are none"
        elif isinstance(found, hdlm.Bound):
            check_numbers(found.to_json())
        elif name == "stream":
            assert (found[-1].tokens < N).all(), "the last frame holds MASK"
        elif name == "save":
            hdlm.load(found)

    return _plan(f"bundle.{name}", words, call, check, ("up/work/saved", *_places(words.get("path"), box)))


def _places(path: Any, box: Box) -> tuple[str, ...]:
    from fuzz.commands import command_plan

    return command_plan(["sample", "model", f"--out={path}"], box).writes if isinstance(path, str) else ()


def _check_generated(found: hdlm.Samples, words: dict[str, Any]) -> None:
    prompt, count = words.get("prompt"), words.get("num_samples", 1)
    prompts = len(prompt) if isinstance(prompt, list) else 1
    plain = isinstance(count, int) and (prompt is None or isinstance(prompt, str | list))
    length = words.get("length") if isinstance(words.get("length"), int) and "text" not in words else None
    check_samples(found.to_json(), count=count * prompts if plain else None, length=length)


def _made(rng: random.Random, box: Box) -> Plan:
    """An object of a public class, and what it says of itself."""
    classes = [getattr(hdlm, name) for name in dir(hdlm) if inspect.isclass(getattr(hdlm, name))]
    kinds = (Noise, Process, Hyperschedule, hdlm.Rule, hdlm.DenoiserConfig)
    wanted = [one for one in classes if issubclass(one, kinds)]
    cls = rng.choice([one for one in wanted if not inspect.isabstract(one) and one is not hdlm.Rule])
    words = arguments(rng, cls.__init__, nasty=rng.choice((0, 1, 1, 2)), box=box)

    def check(found: Any) -> None:
        assert repr(found), "no name"
        if isinstance(found, Noise):
            _check_noise(found)
        elif isinstance(found, Process) and found.vocab_size < 100:
            _check_process(found)
        elif isinstance(found, Hyperschedule) and found.length * found.max_level < 10_000:
            _check_schedule(found)

    return _plan(f"hdlm.{cls.__name__}", words, lambda: cls(**words), check)


def _check_noise(noise: Noise) -> None:
    t = torch.linspace(0, 1, 9)
    alpha, sigma = noise.alpha(t), noise.sigma(t)
    assert not (alpha.isnan() | sigma.isnan()).any(), "NaN"
    assert ((alpha >= 0) & (alpha <= 1)).all(), f"alpha {alpha}"
    assert (alpha.diff() <= 0).all(), f"survival rises: {alpha}"
    assert (sigma.diff() >= 0).all(), f"noise falls: {sigma}"


def _check_process(process: Process) -> None:
    t = torch.tensor([0.0, 0.3, 1.0]).unsqueeze(-1)
    law = process.marginal(torch.eye(process.vocab_size)[:1].expand(3, -1), t.squeeze(-1))
    assert torch.allclose(law.sum(-1), torch.ones(3), atol=1e-4), f"probabilities of sum {law.sum(-1)}"
    x0 = torch.zeros(3, 5, dtype=torch.int64)
    assert (process.corrupt(x0, t.expand(3, 5))[0] == 0).all(), "clean tokens changed at t = 0"


def _check_schedule(schedule: Hyperschedule) -> None:
    levels = schedule.levels
    assert levels.shape == (schedule.steps + 1, schedule.length), f"levels {tuple(levels.shape)}"
    assert (levels[0] == schedule.max_level).all(), "does not begin at full noise"
    assert (levels[-1] == 0).all(), "does not end clean"
    assert (levels.diff(dim=0) <= 0).all(), "a level rises"
    assert math.isfinite(schedule.rate), f"rate {schedule.rate}"
    assert schedule.rate > 0, f"rate {schedule.rate}"


def _process_call(rng: random.Random, box: Box) -> Plan:
    """A method of a process or of a noise schedule."""
    target: Any = rng.choice(
        (hdlm.Absorbing(N), hdlm.Uniform(N), hdlm.GammaHybrid(N, 0.3), hdlm.EpsilonHybrid(N, 0.1), hdlm.Linear(),
         hdlm.LogLinear(), hdlm.Cosine(), hdlm.Geometric(1e-3, 20.0))
    )  # fmt: skip
    known = ("alpha", "sigma", "rate", "corrupt", "marginal", "posterior", "prior", "score")
    name = rng.choice([name for name in known if hasattr(target, name)])
    words = arguments(rng, getattr(target, name), nasty=rng.choice((0, 1, 1, 2)), box=box)

    def check(found: torch.Tensor) -> None:
        if found.is_meta:  # of an argument that has no values
            return
        assert not found.isnan().any(), "NaN"
        if name in ("marginal", "posterior") and words["p0"].dtype.is_floating_point:
            assert ((found >= -1e-5) & (found <= 1 + 1e-5)).all(), "a probability outside [0, 1]"

    return _plan(f"{target!r}.{name}", words, lambda: getattr(target, name)(**words), check)


def _function(rng: random.Random, box: Box) -> Plan:
    """A public function, of which a model called `model` can be asked for."""
    model = box.copy(rng.choice(MODELS), "model")
    name = rng.choice([name for name in dir(hdlm) if inspect.isfunction(getattr(hdlm, name))])
    words = arguments(rng, getattr(hdlm, name), nasty=rng.choice((0, 1, 1, 2)), box=box)

    def call() -> Any:
        given = {key: [hdlm.load(model)] * 2 if value is TWO_MODELS else value for key, value in words.items()}
        return getattr(hdlm, name)(**given)

    writes = ("up/work/saved", *_places(words.get("folder"), box))
    return _plan(f"hdlm.{name}", words, call, lambda found: repr(found), writes)


def _recipe(rng: random.Random, box: Box) -> Plan:
    """A recipe by its name, or with fields of any value."""
    import dataclasses

    if rng.random() < 0.3:
        name = rng.choice((pool.word(rng), pool.python_value(rng), "laptop"))
        return _plan("hdlm.recipes.get", {"name": name}, lambda: hdlm.recipes.get(name), None)
    field = rng.choice(dataclasses.fields(hdlm.recipes.laptop())).name
    value = pool.python_value(rng)
    return _plan("replace", {field: value}, lambda: dataclasses.replace(hdlm.recipes.laptop(), **{field: value}), None)


def _train(rng: random.Random, box: Box) -> Plan:
    """`hdlm.train` with a tiny recipe."""
    box.text()
    words = {"out": "run", "quiet": True}
    for name in rng.sample(("out", "device", "backend", "recipe"), rng.choice((0, 1, 1, 2))):
        words[name] = box.place(rng) if name == "out" and rng.random() < 0.6 else pool.python_value(rng)
    recipe = words.pop("recipe", None) if "recipe" in words else tiny_recipe(steps=1)

    def check(found: Any) -> None:
        assert found.finished, "not finished"
        hdlm.load(found.folder)

    return _plan("hdlm.train", words, lambda: hdlm.train(recipe, **words), check, _places(words["out"], box))
