"""The objects that words stand for: noise, processes, hyperschedules, readings and step rules.

The only place where strings choose classes: everywhere else code holds the objects.
"""

from typing import Any

from hdlm.config.parse import build
from hdlm.config.process import NoiseConfig, ProcessConfig
from hdlm.config.recipe import Recipe
from hdlm.config.sampling import OF_RULES, DrawSettings
from hdlm.config.schedule import ScheduleConfig
from hdlm.sampling import rules
from hdlm.sampling.rule import Rule
from hdlm.sampling.rules import Autoregressive, Original, Posterior, TauLeaping
from hdlm.theory import entries, numbers
from hdlm.theory.absorbing import Absorbing
from hdlm.theory.custom import Custom
from hdlm.theory.epsilon_hybrid import EpsilonHybrid
from hdlm.theory.gamma_hybrid import GammaHybrid
from hdlm.theory.hyperschedule import Hyperschedule
from hdlm.theory.noise import Cosine, Geometric, Linear, LogLinear, Noise
from hdlm.theory.parameterization import score_offset
from hdlm.theory.process import Process
from hdlm.theory.reading import CleanReading, HDCEReading, Reading, ScoreReading, no_offset, sedd_offset
from hdlm.theory.uniform import Uniform

NOISES = {"linear": Linear, "loglinear": LogLinear, "cosine": Cosine, "geometric": Geometric}
PROCESSES = {"absorbing": Absorbing, "uniform": Uniform, "gamma": GammaHybrid, "epsilon": EpsilonHybrid}
# Whatever `entries.py` and `rules.py` define, by its own word: to add one is to write it there.
SCHEDULES: dict[str, Any] = {made.kind: made for made in vars(entries).values() if hasattr(made, "kind")}
RULES: dict[str, type[Rule]] = {
    made.name: made
    for made in vars(rules).values()
    if isinstance(made, type) and issubclass(made, Rule) and hasattr(made, "name")
}
_OFFSETS = {"score": score_offset, "sedd-scaled": sedd_offset, "sedd-plain": no_offset}


def build_noise(config: NoiseConfig) -> Noise:
    """A noise schedule."""
    kind = numbers.choice("process.noise.kind", config.kind, NOISES)
    return build("process.noise.settings", kind, NOISES[kind], config.settings)


def build_process(config: ProcessConfig, vocab_size: int) -> Process:
    """A process over `vocab_size` tokens."""
    kind = numbers.choice("process.kind", config.kind, PROCESSES)
    shares = {
        name: value for name, value in vars(config).items() if name not in ("kind", "noise") and value is not None
    }
    return build("process", kind, PROCESSES[kind], shares, vocab_size=vocab_size, noise=build_noise(config.noise))


def build_schedule(config: ScheduleConfig, *, where: str = "hyperschedule") -> Hyperschedule:
    """A hyperschedule; `where`: the name of its configuration."""
    kind = numbers.choice(f"{where}.kind", config.kind, (*SCHEDULES, Custom.kind))
    settings = {name: value for name, value in vars(config).items() if name not in ("kind", "length")}
    settings = {name: value for name, value in settings.items() if value is not None}
    if kind != Custom.kind:
        return build(where, kind, SCHEDULES[kind], settings, length=config.length)
    return build(where, kind, Custom, settings).resized(config.length)


def check_recipe(recipe: Recipe) -> None:
    """Refuse, by the name of its field, whatever of a recipe cannot be built."""
    build_process(recipe.process, vocab_size=2)
    for number, member in enumerate(recipe.schedules):
        build_schedule(member.schedule(recipe.length), where=f"schedules.{number}")
    if recipe.sampling.sampler is not None:
        process, schedule = build_process(recipe.process, vocab_size=2), recipe.schedules[0].schedule(recipe.length)
        reading = build_reading(recipe.parameterization, process)
        try:
            build_rule(recipe.sampling.settings, reading, build_schedule(schedule))
        except ValueError as error:
            raise ValueError(f"sampling: {error}") from None


def build_reading(parameterization: str, process: Process) -> Reading:
    """What a network's outputs mean."""
    if parameterization == "clean":
        return CleanReading(process)
    if parameterization == "hdce":
        return HDCEReading(process)
    return ScoreReading(process, _OFFSETS[parameterization])


def build_rule(settings: DrawSettings, reading: Reading, schedule: Hyperschedule) -> Rule:
    """The step rule that is asked for, refused if it does not fit; none asked for: the exact one."""
    rule = settings.sampler
    if not isinstance(rule, Rule):
        if rule is None:
            rule = Autoregressive.name if schedule.autoregressive else _exact(reading)
        rule = make_rule(rule, **{name: getattr(settings, name) for name in OF_RULES})
    if isinstance(rule, Autoregressive) and not schedule.autoregressive:
        raise ValueError(f"sampler {rule.name!r} does not fit {schedule!r}: autoregression is the quench schedule's")
    rule.check(reading)
    return rule


def _exact(reading: Reading) -> str:
    """The rule whose draws follow the process's own law; for the absorbing one, the same law drawn with less ado."""
    if reading.gives_scores:
        return TauLeaping.name
    return Original.name if reading.process.masks_only else Posterior.name


def make_rule(name: str, **asked: Any) -> Rule:
    """A step rule by its word, with those of OF_RULES that are asked for; what it does not have is refused."""
    make = RULES[numbers.choice("sampler", name, RULES)]
    settings = {}
    for setting, value in asked.items():
        if value is None:
            continue
        if setting not in make.settings:
            names = " and ".join(rule.name for rule in RULES.values() if setting in rule.settings)
            raise ValueError(f"{setting} = {value!r} is not accepted for sampler {name!r}: it is a setting of {names}")
        settings[setting] = value
    return make(**settings)
