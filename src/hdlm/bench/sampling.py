"""Whole samples timed: the real sampler on a network with random weights, which cost what trained ones cost."""

import functools
import itertools
import statistics
import warnings
from dataclasses import dataclass

import torch

from hdlm.bench.cost import forward_work
from hdlm.bench.roofline import Ceiling
from hdlm.bundle import Bundle
from hdlm.config.bundle import BundleConfig
from hdlm.config.model import preset
from hdlm.config.process import NoiseConfig, ProcessConfig
from hdlm.config.schedule import ScheduleConfig
from hdlm.nn.transformer import Denoiser
from hdlm.theory.entries import Block, Flat, Quench, Slide
from hdlm.theory.hyperschedule import Hyperschedule

# Each with how the recipes build its network: only that of the gamma process is told the noise.
PROCESSES = {
    "absorbing": (ProcessConfig("absorbing"), {"conditioned": False}),
    "epsilon": (ProcessConfig("epsilon", epsilon=0.01), {"conditioned": False}),
    "gamma": (ProcessConfig("gamma", NoiseConfig("loglinear"), gamma=0.01), {"weighted_embedding": True}),
}
RATES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class SampleCase:
    """A process and a schedule, with or without a cache."""

    label: str
    process: str
    schedule: Hyperschedule
    shifted: bool = False
    cache: bool = True
    sampler: str | None = None


@dataclass(frozen=True)
class SampleRow:
    """What a case took: the median over turns, with the fastest and the slowest; `first_s` is the first, cold, run.

    `tokens_per_s`: new ones, all samples together.
    """

    label: str
    samples: int
    length: int
    steps: int
    seconds: float
    spread: tuple[float, float]
    first_s: float
    floor_s: float
    share: float
    stats: dict
    tokens_per_s: float


def cases(length: int, width: int, small: int) -> list[SampleCase]:
    """The paper's table of sampling times, both processes, and the same network as an autoregressive one."""
    found = []
    for process in ("epsilon", "gamma"):
        found += [
            SampleCase(f"{process}, flat", process, Flat(length)),
            SampleCase(f"{process}, block {width}", process, Block(length, width)),
            SampleCase(f"{process}, block {width}, no cache", process, Block(length, width), cache=False),
            *(SampleCase(f"{process}, block {small}, rate {r}", process, Block(length, small, r)) for r in RATES),
            SampleCase(f"{process}, slide {small}", process, Slide(length, small)),
        ]
    return [
        *found,
        SampleCase("absorbing (MDLM), flat", "absorbing", Flat(length)),
        SampleCase("epsilon, flat, ACS 0.05", "epsilon", Flat(length), sampler="acs"),
        SampleCase("AR", "absorbing", Quench(length), shifted=True),
    ]


@functools.lru_cache(maxsize=1)  # cases of one network follow each other
def make_bundle(process: str, device: torch.device, *, shifted: bool) -> Bundle:
    """A random network as the recipes have it for a process: of the paper's size in bf16 on a GPU, a small one else."""
    size, vocab_size, length, dtype = (
        ("small", 50_257, 1024, torch.bfloat16) if device.type == "cuda" else ("tiny", 1000, 128, torch.float32)
    )
    noise, network_settings = PROCESSES[process]
    model = preset(size, vocab_size, **network_settings)
    torch.manual_seed(0)
    network = Denoiser(model)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.02)
    schedule = ScheduleConfig("flat", length)
    config = BundleConfig(model, noise, schedule, shifted=shifted, bos_id=0, next_token=shifted)
    return Bundle(network.to(device, dtype).eval(), config)


def time_sampling(
    case: SampleCase, *, samples: int, turns: int, device: torch.device, ceiling: Ceiling, backend: str | None
) -> SampleRow:
    """A cold run and `turns` warm ones; without a cache, which takes long, one."""
    bundle = make_bundle(case.process, device, shifted=case.shifted)
    how = {"hyperschedule": case.schedule, "sampler": case.sampler, "cache": case.cache, "backend": backend}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = range(1 + turns if case.cache else 2)
        first, *warm = [bundle.generate(num_samples=samples, seed=turn, **how).stats for turn in runs]
    times = [stats.seconds for stats in warm]
    seconds, last = statistics.median(times), warm[-1]
    work = forward_work(
        bundle.config.model,
        calls=last.network_calls,
        width=bundle.model.embedding.element_size(),
        **{name: getattr(last, name) for name in ("slots", "pairs", "keys", "head_slots")},
    )
    floor = ceiling.floor(work)
    return SampleRow(
        label=case.label,
        samples=samples,
        length=case.schedule.length,
        steps=case.schedule.steps,
        seconds=seconds,
        spread=(min(times), max(times)),
        first_s=first.seconds,
        floor_s=floor,
        share=floor / seconds,
        stats=vars(last),
        tokens_per_s=samples * case.schedule.length / seconds,
    )


def growth_cases(lengths: list[int], width: int, *, longest_uncached: int) -> list[SampleCase]:
    """Block and slide at rate 4 over growing texts, with a cache, and without one up to some length."""
    found = []
    for length, kind, cache in itertools.product(lengths, (Block, Slide), (True, False)):
        if cache or length <= longest_uncached:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # slide at rate 4 is for timing only
                schedule = kind(length, width, 4)
            label = schedule.name + ("" if cache else ", no cache")
            found.append(SampleCase(label, "epsilon", schedule, cache=cache))
    return found


def net_of_attention(rows: list[SampleRow]) -> list[float]:
    """Seconds a call of rows that differ in length, less the part that grows with the keys that a call reads.

    That part is fitted, by least squares over the rows, as so many seconds a key.
    """
    calls = torch.tensor([row.stats["network_calls"] for row in rows], dtype=torch.float64)
    keys = torch.tensor([row.stats["keys"] for row in rows], dtype=torch.float64) / calls
    seconds = torch.tensor([row.seconds for row in rows], dtype=torch.float64) / calls
    if len(rows) < 3:  # two points say nothing of a line
        return seconds.tolist()
    per_key = ((keys - keys.mean()) * (seconds - seconds.mean())).sum() / (keys - keys.mean()).square().sum()
    return (seconds - per_key.clamp(min=0) * keys).tolist()
