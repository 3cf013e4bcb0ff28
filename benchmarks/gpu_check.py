"""What CI cannot check for want of a GPU: the same numbers there as on the CPU, and gradients through FlexAttention.

    PYTHONPATH=src python benchmarks/gpu_check.py [--only sampling ...] [--out report.json]

Every line is a comparison with its largest relative error and its limit; the exit code is 1 if one is over. On a
machine without CUDA it runs what it can, for a dry run.
"""

import argparse
import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
import torch._dynamo
from torch import Tensor

import hdlm
from hdlm.bench.training import cpu_cases, make_stepper
from hdlm.bundle import Bundle
from hdlm.config.bundle import BundleConfig
from hdlm.config.model import DenoiserConfig
from hdlm.config.process import NoiseConfig, ProcessConfig
from hdlm.config.schedule import ScheduleConfig
from hdlm.evaluate.likelihood import estimate
from hdlm.fast.attention import flex_attention_for, training_attention
from hdlm.fast.fixed_cache import FixedCache
from hdlm.fast.gradients import gradient_by_autograd, gradient_by_kernel, has_kernel
from hdlm.fast.head_loss import head_loss
from hdlm.fast.trunk import fast_trunk
from hdlm.nn.attention import dense_attention
from hdlm.nn.transformer import Denoiser, Head
from hdlm.objectives.bounds import training_objective
from hdlm.objectives.objective import NextToken
from hdlm.theory import checks
from hdlm.theory.draws import draw_times
from hdlm.theory.layout import Layout, build_layout, inference_layout, next_token_layout, training_layout
from hdlm.theory.random import Keyed
from hdlm.theory.reading import CleanReading, HDCEReading

VOCAB, LENGTH, WIDTH, BOS = 1000, 1024, 256, 0
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")

results: list[dict] = []


def compare(name: str, found: Tensor, expected: Tensor, limit: float) -> None:
    """Record the relative error ||found - expected|| / ||expected||."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    error = ((found - expected).norm() / expected.norm().clamp(min=1e-30)).item()
    results.append({"check": name, "relative_error": error, "limit": limit, "passed": error <= limit})
    print(f"{'ok  ' if error <= limit else 'OVER'} {error:8.1e} <= {limit:.0e}  {name}", flush=True)


def layouts() -> dict[str, Layout]:
    """One layout of every kind, at the size of a real training step."""
    block, slide = hdlm.Block(LENGTH, WIDTH), hdlm.Slide(LENGTH, WIDTH)
    found = {"quench": training_layout(hdlm.Quench(LENGTH), shifted=True)}
    for shifted in (False, True):
        side = "shifted" if shifted else "aligned"
        found[f"flat {side}"] = training_layout(hdlm.Flat(LENGTH), shifted=shifted)
        found[f"block {side}"] = training_layout(block, shifted=shifted)
        found[f"slide {side}, offset 100"] = training_layout(slide, shifted=shifted, offset=100)
    found["block-causal"] = training_layout(block, shifted=False, block_causal=True)
    found["overlapping windows"] = build_layout(500, [(30, 200), (120, 390), (450, 500)], shifted=True)
    return found


def check_attention() -> None:
    """FlexAttention against the dense mask in float64: outputs and all three gradients."""
    for name, layout in layouts().items():
        layout = layout.to(DEVICE)
        torch.manual_seed(0)
        shape = (2, 4, len(layout), 64)
        q, k, v, weight = (torch.randn(shape, device=DEVICE, dtype=torch.float64) for _ in range(4))

        def run(attend, dtype, inputs=(q, k, v), weight=weight):
            leaves = [x.to(dtype).requires_grad_() for x in inputs]
            out = attend(*leaves)
            return out, torch.autograd.grad((out * weight.to(dtype)).sum(), leaves)

        out, gradients = run(dense_attention(layout), torch.float64)
        kinds = [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)] if CUDA else []
        for dtype, limit in kinds:
            fast_out, fast_gradients = run(flex_attention_for(layout), dtype)
            label = f"attention, {name}, {str(dtype).removeprefix('torch.')}"
            compare(f"{label}: output", fast_out, out, limit)
            for letter, fast, exact in zip("qkv", fast_gradients, gradients, strict=True):
                compare(f"{label}: gradient of {letter}", fast, exact, limit)


def network(dtype: torch.dtype = torch.float32) -> Denoiser:
    """A random conditioned network, gates open."""
    torch.manual_seed(1)
    config = DenoiserConfig(vocab_size=VOCAB, layers=3, width=256, heads=4, weighted_embedding=True)
    model = Denoiser(config)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.05)
    return model.to(DEVICE, dtype).eval()


def batch(schedule, step: int, process, rows: int = 2):
    """Tokens, noisy tokens and a draw for one training step, the same on every device."""
    indices = torch.arange(step * rows, (step + 1) * rows)
    draw = draw_times(schedule, seed=3, indices=indices, global_batch=rows)
    x0 = torch.randint(VOCAB, (rows, LENGTH), generator=torch.Generator().manual_seed(step))
    xt = process.corrupt(x0, draw.times, generator=Keyed(4, indices))
    return x0, xt, draw


def check_compiled() -> None:
    """The compiled trunk over changing slide offsets: right, whole, and compiled once a layout shape."""
    process = hdlm.GammaHybrid(VOCAB, 0.01)
    exact_model, model = network(torch.float64), network()
    for schedule, shifted in ((hdlm.Slide(LENGTH, WIDTH), False), (hdlm.Slide(LENGTH, WIDTH), True)):
        side = "shifted" if shifted else "aligned"
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        run = torch.compile(model.run, fullgraph=True)
        for step in range(4):
            x0, xt, draw = batch(schedule, step, process)
            layout = training_layout(schedule, shifted=shifted, offset=draw.offset).to(DEVICE)
            x0, xt, times = x0.to(DEVICE), xt.to(DEVICE), draw.times.to(DEVICE)
            slots = layout.fill(x0, xt, times, process, bos_id=BOS)
            inputs = (slots.token, slots.sigma, slots.weight, model.rope(layout.position), layout.runs)
            out = run(*inputs, training_attention(layout))
            (gradient,) = torch.autograd.grad(out.square().sum(), model.embedding)
            exact = exact_model.run(
                slots.token,
                slots.sigma.double(),
                slots.weight.double(),
                exact_model.rope(layout.position),
                layout.runs,
                dense_attention(layout),
            )
            (exact_gradient,) = torch.autograd.grad(exact.square().sum(), exact_model.embedding)
            compare(f"compiled slide {side}, offset {draw.offset}: output", out, exact, 1e-4)
            compare(f"compiled slide {side}, offset {draw.offset}: gradient", gradient, exact_gradient, 1e-3)
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
        compare(f"compiled slide {side}: graphs over 4 offsets", torch.tensor(float(graphs)), torch.tensor(1.0), 0.0)
        results.append({"check": f"compiled slide {side}: graph breaks", "count": breaks, "passed": breaks == 0})


def check_theory() -> None:
    """Corruption, posteriors and draws on the device against the CPU."""
    for process in (
        hdlm.Absorbing(VOCAB),
        hdlm.Uniform(VOCAB),
        hdlm.GammaHybrid(VOCAB, 0.1),
        hdlm.EpsilonHybrid(VOCAB, 0.1),
    ):
        x0, xt, draw = batch(hdlm.Block(LENGTH, WIDTH), 0, process)
        moved = process.corrupt(x0.to(DEVICE), draw.times.to(DEVICE), generator=Keyed(4, torch.arange(2)))
        compare(f"{type(process).__name__}: corrupted tokens", moved, xt, 1e-3)
        p0 = torch.randn(2, LENGTH, VOCAB, generator=torch.Generator().manual_seed(0)).softmax(-1)
        t, s = draw.times, draw.times / 2
        law = process.posterior(xt, p0, s=s, t=t)
        there = process.posterior(xt.to(DEVICE), p0.to(DEVICE), s=s.to(DEVICE), t=t.to(DEVICE))
        compare(f"{type(process).__name__}: posterior", there, law, 1e-5)
        drawn = process.sample_posterior(xt, p0, s=s, t=t, generator=Keyed(5, torch.arange(2)))
        there = process.sample_posterior(
            xt.to(DEVICE), p0.to(DEVICE), s=s.to(DEVICE), t=t.to(DEVICE), generator=Keyed(5, torch.arange(2))
        )
        share = (there.cpu() != drawn).double().mean()
        compare(f"{type(process).__name__}: drawn tokens that differ", 1 + share, torch.tensor(1.0), 1e-3)


def check_cache() -> None:
    """One cached step against the uncached one, prefix 700, window 64."""
    process = hdlm.GammaHybrid(VOCAB, 0.01)
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 3e-2)):
        if dtype is torch.bfloat16 and not CUDA:
            continue
        model = network(dtype)
        x = torch.randint(VOCAB, (2, 764), generator=torch.Generator().manual_seed(2)).to(DEVICE)
        t = torch.full((2, 764), 0.5, dtype=torch.float64 if dtype is torch.float64 else torch.float32, device=DEVICE)
        for shifted in (False, True):
            cache = model.new_cache(2, 765)
            with torch.no_grad():
                model(
                    inference_layout(690, 764, shifted=shifted).to(DEVICE).fill(x, x, t, process, bos_id=BOS),
                    cache=cache,
                )
                layout = inference_layout(700, 764, shifted=shifted, cached=690).to(DEVICE)
                cached = model(layout.fill(x, x, t, process, bos_id=BOS), cache=cache)[:, 10:]
                plain = model(inference_layout(700, 764, shifted=shifted).to(DEVICE).fill(x, x, t, process, bos_id=BOS))
            label = f"cache, {'shifted' if shifted else 'aligned'}, {str(dtype).removeprefix('torch.')}"
            compare(label, cached, plain[:, 700:], limit)


def check_sampling() -> None:
    """Whole samples and bounds: the same tokens and the same number as on the CPU, with and without the cache."""
    schedules = (hdlm.Block(48, 16), hdlm.Slide(48, 16), hdlm.Flat(48, 2), hdlm.Quench(48))
    for kind in ("absorbing", "gamma", "epsilon"):
        share = {"gamma": {"gamma": 0.05}, "epsilon": {"epsilon": 0.1}}.get(kind, {})
        noise = NoiseConfig("loglinear") if kind == "gamma" else NoiseConfig("linear")
        bundles = {}
        for device in ("cpu", DEVICE):
            model = network(torch.float64).to(device).eval()
            config = BundleConfig(
                model.config,
                ProcessConfig(kind, noise, **share),
                ScheduleConfig("block", 64, width=16),
                shifted=True,
                bos_id=BOS,
                next_token=True,
            )
            bundles[device] = Bundle(model, config)
        for schedule in schedules:
            prompts = [[], [5, 6, 7]]
            here, there, plain = (
                bundles[device].generate(prompts, hyperschedule=schedule, seed=1, cache=cache)
                for device, cache in (("cpu", True), (DEVICE, True), (DEVICE, False))
            )
            expected = torch.tensor([token for row in here.tokens for token in row])
            for name, samples in (("cached", there), ("uncached", plain)):
                found = torch.tensor([token for row in samples.tokens for token in row])
                compare(f"samples, {kind}, {schedule!r}, {name}, float64 tokens", found, expected, 0.0)
        rows = torch.randint(VOCAB, (4, 64), generator=torch.Generator().manual_seed(0)).tolist()
        values = [torch.tensor(estimate(bundles[device], rows).value) for device in (DEVICE, "cpu")]
        compare(f"bound, {kind}, float64", *values, 1e-9)
        if CUDA:
            half = Bundle(bundles[DEVICE].model.to(torch.bfloat16), bundles[DEVICE].config)
            samples = half.generate(num_samples=4, hyperschedule=schedules[0], seed=1)
            highest = torch.tensor(max(max(row) for row in samples.tokens))
            compare(
                f"samples, {kind}, bfloat16: every token is a real one", (highest < VOCAB).float(), torch.ones(()), 0.0
            )


def check_fused() -> None:
    """The trunk that generation uses in half precision against the plain one in float64, for every style of block."""
    styles = {
        "paper": {"weighted_embedding": True},
        "plain": {"conditioned": False},
        "llama": {"conditioned": False, "rms_norm": True, "gated": True, "mlp_bias": False, "kv_heads": 2},
    }
    process, by = hdlm.GammaHybrid(VOCAB, 0.1), torch.tensor([100, 180, 200], device=DEVICE)
    passes = {
        "flat": (inference_layout(0, 300, shifted=True, one_level_a_window=True), None),
        "window": (inference_layout(0, 40, shifted=True), by),
        "settled and window": (inference_layout(30, 60, shifted=True), by),
        "next token": (next_token_layout(0), by),
    }
    x = torch.randint(VOCAB, (3, 300), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    t = torch.full((3, 300), 0.5, device=DEVICE)
    dtype = torch.bfloat16 if CUDA else torch.float32
    for style, changes in styles.items():
        config = DenoiserConfig(vocab_size=VOCAB, layers=4, width=256, heads=4, **changes)
        torch.manual_seed(0)
        half = Denoiser(config)
        for parameter in half.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.05)
        half = half.to(DEVICE, dtype).eval()
        exact = Denoiser(config).to(DEVICE).double().eval()
        exact.load_state_dict(half.state_dict())
        for name, (layout, moved) in passes.items():
            layout = layout.to(DEVICE) if moved is None else layout.to(DEVICE).moved(moved)
            caches = [None, None]
            if moved is not None:
                caches = [FixedCache.of(model, 3, 310) for model in (half, exact)]
                for part in ("keys", "values"):
                    filled = torch.randn(getattr(caches[0], part).shape, device=DEVICE).to(dtype)
                    for cache in caches:
                        getattr(cache, part).copy_(filled)
            with torch.no_grad():
                outputs = [
                    fast_trunk(model, layout.fill(x, x, time, process, bos_id=BOS), cache)
                    for model, time, cache in ((half, t, caches[0]), (exact, t.double(), caches[1]))
                ]
            compare(f"fused trunk, {style}, {name}", *outputs, 2e-2 if CUDA else 1e-4)


def check_losses() -> None:
    """Head and loss as one operation in half precision, by its kernels: those of plain autograd in float64."""
    rows, width = 4096, 256
    for name, process in (
        ("next token", None),
        ("masked", hdlm.Absorbing(VOCAB)),
        ("gamma", hdlm.GammaHybrid(VOCAB, 0.01)),
        ("HDCE", hdlm.EpsilonHybrid(VOCAB, 0.01)),
        ("epsilon bound", hdlm.EpsilonHybrid(VOCAB, 0.01)),
    ):
        reading = HDCEReading if name == "HDCE" else CleanReading
        objective = NextToken() if process is None else training_objective(reading(process))
        source = process or hdlm.Absorbing(VOCAB)
        torch.manual_seed(0)
        head = Head(DenoiserConfig(VOCAB, layers=1, width=width, heads=4)).to(DEVICE)
        torch.nn.init.normal_(head.weight, std=0.05)
        features = torch.randn(rows, width, device=DEVICE, requires_grad=True)
        x0 = torch.randint(VOCAB, (rows,), generator=torch.Generator().manual_seed(1))
        t = torch.rand(rows, generator=torch.Generator().manual_seed(2)).clamp(0.02, 0.98)
        xt = source.corrupt(x0, t, generator=torch.Generator().manual_seed(3)).to(DEVICE)
        x0, t = x0.to(DEVICE), t.to(DEVICE)

        way = gradient_by_kernel if has_kernel(objective, DEVICE, torch.bfloat16) else gradient_by_autograd
        with checks.trusted(), torch.autocast("cuda", torch.bfloat16) if CUDA else nullcontext():
            fused = head_loss(head, features, way(objective, xt, x0, t, torch.ones_like(t), VOCAB))
        found = torch.autograd.grad(fused, (features, head.weight))
        wide = features.detach().double().requires_grad_(), head.weight.detach().double().requires_grad_()
        plain = objective((wide[0] @ wide[1].T)[:, :VOCAB], xt, x0, t.double()).sum()
        expected = torch.autograd.grad(plain, wide)
        compare(f"head and loss, {name}: loss", fused, plain, 1e-2)
        for part, one, other in zip(("features", "matrix"), found, expected, strict=True):
            compare(f"head and loss, {name}: gradient of the {part}", one, other, 1e-2)


def check_precision() -> None:
    """The losses of forty steps of training in half precision, each beside the CPU's in float32 from the same weights.

    From the same weights, since two trainings that differ by a rounding do not stay together, whatever the precision.
    """
    for case in cpu_cases():
        optimizer = replace(case.recipe.optimizer, lr=3e-3, warmup=0)
        case = replace(case, recipe=replace(case.recipe, optimizer=optimizer))
        half, plain = (make_stepper(case, VOCAB, device) for device in (DEVICE, torch.device("cpu")))
        losses = []
        for _ in range(40):
            plain.state.model.load_state_dict(half.state.model.state_dict())
            losses.append([stepper.step().loss for stepper in (half, plain)])
        compare(f"forty steps, {case.label}: losses", *torch.tensor(losses).unbind(1), 1e-2)


def check_bad_step() -> None:
    """A loss that is no number, found out after the update is on its way: weights and their average stay."""
    case = next(case for case in cpu_cases() if case.label.startswith("gamma, block"))
    stepper = make_stepper(case, VOCAB, DEVICE)
    stepper.step()
    before = [p.detach().clone() for p in stepper.state.model.parameters()]
    averages = [value.clone() for value in stepper.state.average.values.values()]
    update = stepper._update
    stepper._update = lambda found: update(found * float("nan"))
    done = stepper.step()
    results.append({"check": "a bad step is noticed", "passed": done.skipped and stepper.state.updates == 1})
    for name, old, new in (
        ("weights", before, stepper.state.model.parameters()),
        ("averages", averages, stepper.state.average.values.values()),
    ):
        pairs = [torch.cat([x.detach().flatten() for x in values]) for values in (new, old)]
        compare(f"a bad step: {name} stay", *pairs, 0.0)
    stepper._update = update
    results.append({"check": "a good step goes on", "passed": not stepper.step().skipped})


CHECKS = {
    "theory": check_theory,
    "losses": check_losses,
    "precision": check_precision,
    "bad_step": check_bad_step,
    "fused": check_fused,
    "cache": check_cache,
    "sampling": check_sampling,
    "attention": check_attention,
    "compiled": check_compiled,
}


def main() -> int:
    """Run all checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS), help="these checks")
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    args = parser.parse_args()
    name = torch.cuda.get_device_name() if CUDA else "no CUDA"
    print(f"torch {torch.__version__}, {name}")
    for check in args.only:
        CHECKS[check]()
        if args.out:
            setting = {"torch": torch.__version__, "device": name, "checks": args.only[: args.only.index(check) + 1]}
            args.out.write_text(json.dumps({"setting": setting, "checks": results}, indent=1) + "\n")
    failed = [row["check"] for row in results if not row["passed"]]
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
