"""What a model can do, for those who choose: an entry of `/v1/models`."""

from typing import TYPE_CHECKING, Any

from hdlm.config.build import RULES, build_rule
from hdlm.config.sampling import DrawSettings
from hdlm.config.schedule import ScheduleConfig
from hdlm.serve.limits import Limits
from hdlm.theory.entries import Quench

if TYPE_CHECKING:
    from hdlm.bundle import Bundle


def describe(name: str, bundle: "Bundle", created: int) -> dict[str, Any]:
    """An entry of the list."""
    config = bundle.config
    exact = config.shifted and config.was_trained_on(ScheduleConfig.of(Quench(1)), 1)
    widest = config.context if config.sees_all else config.widest_window
    own = config.hyperschedule
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "hdlm",
        "hdlm": {
            "parameters": bundle.model.num_parameters,
            "context": config.context,
            "vocab_size": config.model.vocab_size,
            "shifted": config.shifted,
            "process": repr(bundle.process),
            "masks": bundle.masks,
            "hyperschedule": {"kind": own.kind, "width": own.width, "rate": own.rate, "name": own.name},
            "trained_on": [one.name for one in config.schedules] + ["next token"] * exact,
            "samplers": _samplers(bundle),
            "speculation": config.shifted and bundle.masks,
            "gaps": {"widest": widest, "open": exact} if widest > 1 else None,
            "chat": bundle.chat_template is not None,
            "tokenizer": bundle.tokenizer is not None,
            "sampling": config.sampling.to_json(),
        },
    }


def limits_of(models: dict[str, "Bundle"], limits: Limits) -> dict[str, Any]:
    """The limits, of the model that the others are not larger than."""
    return limits.to_json(max(bundle.config.context for bundle in models.values()))


def _samplers(bundle: "Bundle") -> list[str]:
    """The step rules that fit."""
    found, reading = [], bundle.config.reading(bundle.process)
    for name in RULES:
        if DrawSettings(sampler=name).one_after_the_other:
            continue
        try:
            build_rule(DrawSettings(sampler=name), reading, bundle.hyperschedule)
        except ValueError:
            continue
        found.append(name)
    return found
