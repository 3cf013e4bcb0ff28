"""Whole samples timed: the real sampler on a network with random weights, which cost what trained ones cost."""

import dataclasses
import statistics
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch

from hdlm.bench.roofline import Ceiling, forward_work
from hdlm.bundle import Bundle
from hdlm.config import BundleConfig, NoiseConfig, ProcessConfig, ScheduleConfig, preset
from hdlm.nn.transformer import Denoiser
from hdlm.sampling.frame import Stats
from hdlm.theory.hyperschedule import Block, Flat, Hyperschedule, Quench, Slide

PROCESSES = {
    "absorbing": ProcessConfig("absorbing"),
    "epsilon": ProcessConfig("epsilon", epsilon=0.01),
    "gamma": ProcessConfig("gamma", NoiseConfig("loglinear"), gamma=0.01),
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
    """What a case took: the median over turns, with the fastest and the slowest; `first_s` is the first, cold, run."""

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

    @property
    def tokens_per_s(self) -> float:
        """New tokens per second, all rows together."""
        return self.samples * self.length / self.seconds

    def to_json(self) -> dict:
        """All numbers by name."""
        return asdict(self) | {"tokens_per_s": self.tokens_per_s}


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


class Bench:
    """Bundles of one size, made once each."""

    def __init__(self, size: str, vocab_size: int, length: int, device: torch.device) -> None:
        self._size, self._vocab, self._length, self._device = size, vocab_size, length, device
        self._bundles: dict[tuple[str, bool], Bundle] = {}

    def bundle(self, process: str, *, shifted: bool) -> Bundle:
        """A network as the recipes have it for a process, bf16 on a GPU."""
        key = (process, shifted)
        if key not in self._bundles:
            gamma = process == "gamma"
            model = preset(self._size, self._vocab, conditioned=gamma, weighted_embedding=gamma)
            torch.manual_seed(0)
            network = Denoiser(model)
            with torch.no_grad():
                for parameter in network.parameters():
                    if parameter.ndim == 2:
                        torch.nn.init.normal_(parameter, std=0.02)
            schedule = ScheduleConfig("flat", self._length)
            config = BundleConfig(model, PROCESSES[process], schedule, shifted=shifted, bos_id=0, next_token=shifted)
            dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
            self._bundles = {key: Bundle(network.to(self._device, dtype).eval(), config)}  # one at a time
        return self._bundles[key]

    def time(self, case: SampleCase, *, samples: int, turns: int, ceiling: Ceiling) -> SampleRow:
        """A cold run and `turns` warm ones; without a cache, which takes long, one."""
        bundle = self.bundle(case.process, shifted=case.shifted)
        found: list[Stats] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for turn in range(1 + turns if case.cache else 2):
                settings = {"num_samples": samples, "hyperschedule": case.schedule, "cache": case.cache}
                found.append(bundle.generate(**settings, sampler=case.sampler, seed=turn).stats)
        first, *warm = found
        seconds = statistics.median(stats.seconds for stats in warm)
        work = sampling_work(bundle, warm[-1])
        floor = work.floor(ceiling)
        return SampleRow(
            label=case.label,
            samples=samples,
            length=case.schedule.length,
            steps=case.schedule.steps,
            seconds=seconds,
            spread=(min(s.seconds for s in warm), max(s.seconds for s in warm)),
            first_s=first.seconds,
            floor_s=floor,
            share=floor / seconds,
            stats=dataclasses.asdict(warm[-1]),
        )


def sampling_work(bundle: Bundle, stats: Stats):
    """What the calls of a run could not avoid."""
    return forward_work(
        bundle.config.model,
        calls=stats.network_calls,
        slots=stats.slots,
        pairs=stats.pairs,
        keys=stats.keys,
        head_slots=stats.head_slots,
        head_calls=stats.network_calls,
        width=bundle.model.embedding.element_size(),
    )


def time_sampling(bench: Bench, chosen: list[SampleCase], **settings) -> Iterator[SampleRow]:
    """A row per case."""
    for case in chosen:
        yield bench.time(case, **settings)


def growth_cases(lengths: list[int], width: int, *, longest_uncached: int) -> list[SampleCase]:
    """Block and slide at rate 4 over growing texts, with a cache, and without one up to some length."""
    found = []
    for length in lengths:
        for name, kind in (("block", Block), ("slide", Slide)):
            for cache in (True, False):
                if cache or length <= longest_uncached:
                    label = f"{name} {width}" + ("" if cache else ", no cache")
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # slide at rate 4 is for timing only
                        found.append(SampleCase(label, "epsilon", kind(length, width, 4), cache=cache))
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
    slope = ((keys - keys.mean()) * (seconds - seconds.mean())).sum() / (keys - keys.mean()).square().sum()
    return (seconds - slope.clamp(min=0) * keys).tolist()
