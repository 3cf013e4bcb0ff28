"""Where the time of a training step goes, kernel by kernel: a table for those who want to make it faster.

    PYTHONPATH=src python benchmarks/profile_training.py [--case "gamma, block"] [--rows 25]
    PYTHONPATH=src python benchmarks/profile_training.py --recipe stories --set schedules=block:16 --vocabulary 2047

First the steps themselves, unwatched: milliseconds each, of which so many the host was busy before it waited.
"""

import argparse
import statistics
import time

import torch

from hdlm.bench.training import TrainCase, cpu_cases, gpu_cases, make_stepper
from hdlm.config import recipes
from hdlm.config.parse import overrides
from hdlm.device import choose_device
from hdlm.train.step import Stepper


def show_times(stepper: Stepper, steps: int) -> None:
    """Milliseconds a step, and those of making a batch."""
    made, times = stepper.batches.at, []
    spent = [0.0]

    def timed(*arguments, **named):
        began = time.perf_counter()
        try:
            return made(*arguments, **named)
        finally:
            spent[0] += time.perf_counter() - began

    stepper.batches.at = timed
    for _ in range(steps):
        began = time.perf_counter()
        stepper.step()
        times.append(1e3 * (time.perf_counter() - began))
    stepper.batches.at = made
    middle = statistics.median(times)
    spread, batch = f"{min(times):.1f} to {max(times):.1f}", 1e3 * spent[0] / steps
    print(f"{middle:.1f} ms a step ({spread}), {batch:.1f} of the host's for its batch")


def show_idle(profile: torch.profiler.profile) -> None:
    """How long the device had nothing to do, and the longest waits with what came before and after."""
    work = [event for event in profile.events() if str(event.device_type).endswith("CUDA")]
    work.sort(key=lambda event: event.time_range.start)
    waits, until = [], work[0]
    for event in work[1:]:
        wait = event.time_range.start - until.time_range.end
        if wait > 0:
            waits.append((wait, until.name, event.name))
        until = max(until, event, key=lambda one: one.time_range.end)
    print(f"{sum(wait for wait, *_ in waits) / 3e3:.2f} ms a step idle; the longest waits:")
    for wait, before, after in sorted(waits, reverse=True)[:8]:
        print(f"{wait / 1e3:9.3f} ms between {before[:50]} and {after[:50]}")


def main() -> None:
    """Warm up, profile three steps, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="gamma, block")
    parser.add_argument("--recipe", help="instead of a case of the bench")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="of the recipe")
    parser.add_argument("--vocabulary", type=int, help="tokens")
    parser.add_argument("--steps", type=int, default=30, help="that are timed before three are profiled")
    parser.add_argument("--rows", type=int, default=25)
    parser.add_argument("--device")
    args = parser.parse_args()
    device = choose_device(args.device)
    cuda = device.type == "cuda"
    if args.recipe:
        recipe = overrides(recipes.get(args.recipe), [tuple(one.split("=", 1)) for one in args.set])
        case = TrainCase(" ".join([args.recipe, *args.set]), recipe, recipe.global_batch)
    else:
        case = next(case for case in (gpu_cases() if cuda else cpu_cases()) if case.label.startswith(args.case))
    stepper = make_stepper(case, args.vocabulary or (50257 if cuda else 1000), device)
    for _ in range(10 if cuda else 2):
        stepper.step()
    show_times(stepper, args.steps)
    kinds = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * cuda
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(3):
            stepper.step()
    key = "self_device_time_total" if cuda else "self_cpu_time_total"
    found = sorted(profile.key_averages(), key=lambda event: -getattr(event, key))
    if cuda:
        found = [event for event in found if str(event.device_type).endswith("CUDA")]
    total = sum(getattr(event, key) for event in found)
    print(f"{case.label}: {total / 3e3:.2f} ms a step in all")
    if cuda:
        show_idle(profile)
    for event in found[: args.rows]:
        print(f"{getattr(event, key) / 3e3:9.3f} ms {event.count // 3:6d} x  {event.key[:110]}")


if __name__ == "__main__":
    main()
