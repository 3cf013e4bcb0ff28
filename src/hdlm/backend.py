"""The one place where the fast floor is chosen over the reference: for sampling and for training.

`reference` is the plain code of `sampling/` and `train/`; `fast` is `fast/`, which does the same with less work and is
held to it. Nothing else imports `fast` (but `bench`, which times it). Without `fast/` everything runs on the reference.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hdlm.sampling.company import Company
    from hdlm.sampling.loop import Run
    from hdlm.sampling.results import Frame
    from hdlm.train.loss import LossModule


def choose(backend: str | None) -> str:
    """The floor that a word stands for; None: the fast one, where there is one."""
    there = importlib.util.find_spec("hdlm.fast") is not None
    if backend is None:
        return "fast" if there else "reference"
    if not isinstance(backend, str) or backend not in ("fast", "reference"):
        raise ValueError(f"backend = {backend!r} is not accepted: it must be one of fast, reference")
    if backend == "fast" and not there:
        raise ValueError("backend = 'fast' is not accepted: hdlm.fast is not installed here")
    return backend


def sampler(
    run: "Run", *, backend: str | None, watched: bool, progress: Callable[[int], None] | None
) -> Iterator["Frame"]:
    """All steps of a run, on the floor asked for; a frame a step where it is watched, else perhaps none."""
    if choose(backend) == "fast":
        return importlib.import_module("hdlm.fast.engine").sample(run, watched=watched, progress=progress)
    from hdlm.sampling import loop, speculative

    if run.drafts is not None:
        return speculative.sample(run, speculative.Drafter(run), watched=watched, progress=progress)
    return loop.sample(run, loop.Predictor(run), watched=watched, progress=progress)


def company(*, backend: str | None = None) -> "Company":
    """An empty company of texts of one network, on the floor asked for."""
    from hdlm.sampling.company import Company

    chosen = choose(backend)
    made = importlib.import_module("hdlm.fast.company").FastCompany if chosen == "fast" else Company
    return made(lambda run: sampler(run, backend=chosen, watched=True, progress=None))


def loss_module(*arguments: Any, backend: str | None, compile: bool) -> "LossModule":
    """Network and objective as one module; `arguments` as of `LossModule`. The reference is never compiled."""
    if choose(backend) == "fast":
        return importlib.import_module("hdlm.fast.training").FastLossModule(*arguments, compile=compile)
    from hdlm.train.loss import LossModule

    return LossModule(*arguments)
