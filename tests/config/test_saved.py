"""What config.json says and what its digest is of: models that were saved stay what they are when fields are added."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import hdlm
from hdlm.config.bundle import BundleConfig
from hdlm.config.fields import plain, setting
from hdlm.config.model import DenoiserConfig
from hdlm.config.process import ProcessConfig
from hdlm.config.schedule import ScheduleConfig
from hdlm.weights import read_metadata

SHIPPED = Path(hdlm.__file__).parent / "models" / "stories"
DIGEST = "7a0e88939cd9e63dd19c57d06f2a5558c045a5b267dc93ddb01ff92f04b7e757"
LEVELS = ((2, 2, 2, 2), (2, 1, 2, 1), (1, 0, 2, 0), (0, 0, 0, 0))
MODEL = DenoiserConfig(vocab_size=9, layers=1, width=16, heads=2)


def config(**changes):
    settings = {"model": MODEL, "process": ProcessConfig(), "shifted": False}
    return BundleConfig(**({"hyperschedule": ScheduleConfig("flat", 8)} | settings | changes))


def test_the_shipped_model_keeps_its_digest():
    """A field added to its network or process without `later=True` would make it another's."""
    read = BundleConfig.from_json(json.loads((SHIPPED / "config.json").read_text()))
    assert replace(read, model=replace(read.model, draft_width=0)).digest == DIGEST  # as it was before it had one
    assert read_metadata(SHIPPED / "model.safetensors")["config"] == read.digest


@dataclass(frozen=True)
class LaterModel(DenoiserConfig):
    """A network with a field that a later version might have."""

    twist: int = setting(0, later=True)


@dataclass(frozen=True)
class CarelessModel(DenoiserConfig):
    twist: int = 0


def test_a_later_field_at_its_default_leaves_digest_and_file_alone():
    later, changed, careless = (cls(**vars(MODEL), **more) for cls, more in KINDS)
    assert config(model=later).digest == config().digest
    assert config(model=later).to_json() == config().to_json()
    assert config(model=changed).digest != config().digest
    assert config(model=changed).to_json()["model"]["twist"] == 1
    assert config(model=careless).digest != config().digest


KINDS = [(LaterModel, {}), (LaterModel, {"twist": 1}), (CarelessModel, {})]


def test_meaning_is_what_the_digest_is_of():
    assert config(hyperschedule=ScheduleConfig("block", 8, width=2)).digest == config().digest
    for other in ({"shifted": True, "bos_id": 0}, {"process": ProcessConfig("uniform")}, {"parameterization": "score"}):
        assert config(**other).digest != config().digest


def test_levels_are_saved_with_a_custom_schedule_and_nowhere_else():
    own = ScheduleConfig("custom", 4, levels=LEVELS)
    saved = config(hyperschedule=own, mixture=(ScheduleConfig("flat", 4),))
    data = json.loads(json.dumps(saved.to_json()))
    numbers = {"length": 4, "width": None, "rate": None}
    assert data["hyperschedule"] == {"kind": "custom", **numbers, "levels": plain(LEVELS)}
    assert set(data["mixture"][0]) == {"kind", "length", "width", "rate"}
    assert BundleConfig.from_json(data) == saved
    assert saved.sees_all
    assert saved.schedule_for(3) == replace(own, length=3)
    assert saved.schedule_for(3).build().levels.tolist() == [list(row[:3]) for row in LEVELS]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"kind": "custom"}, "trained on none, so give one of your own, by hyperschedule=hdlm.Custom"),
        ({"kind": "flat", "width": 2}, "width = 2 is not accepted for flat"),
    ],
)
def test_a_schedule_that_is_not_there_is_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        config().schedule_for(4, **asked)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"levels": None}, r"hyperschedule\.levels = None is not accepted: the kind 'custom' needs one"),
        ({"width": 2}, r"hyperschedule\.width = 2 is not accepted: the kind 'custom' takes levels"),
        ({"length": 5}, "length = 5 is not accepted: .* has 4 positions"),
        ({"levels": ((1, 1), (2, 2), (0, 0))}, r"hyperschedule\.levels rises from 1 to 2 at row 1, column 0"),
        ({"kind": "flat"}, r"hyperschedule\.levels = \(\(2, .* is not accepted: the kind 'flat' takes rate"),
    ],
)
def test_a_custom_schedule_that_is_none_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(ScheduleConfig("custom", 4, levels=LEVELS), **changes).build()


@pytest.mark.parametrize(
    ("keyword", "ours"),
    [("max_new_tokens", "length"), ("do_sample", "temperature"), ("num_return_sequences", "num_samples")],
)
@pytest.mark.parametrize("method", ["generate", "stream", "infill"])
def test_keywords_of_other_libraries_are_told_ours(method, keyword, ours):
    with pytest.raises(TypeError, match=rf"{method}\(\) takes no {keyword}: here it is {ours}"):
        getattr(hdlm.Bundle, method)(None, "a", **{keyword: 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        getattr(hdlm.Bundle, method)(None, "a", colour=1)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ((8.0, 1.0), "or factor, low, high, length"),
        ((8.0, 4.0, 1.0, 32.0), "low below high"),
        ((0.5, 1.0, 4.0, 32.0), "factor must be at least 1"),
        ((8.0, 1.0, 4.0, float("nan")), "a finite number above 0"),
    ],
)
def test_a_false_rope_scaling_is_refused(scaling, message):
    with pytest.raises(ValueError, match=message):
        replace(MODEL, rope_scaling=scaling)


def test_blocks_of_other_styles_are_saved_and_read():
    changed = config(model=replace(MODEL, qkv_bias=True, qk_norm=True, rope_scaling=(8.0, 1.0, 4.0, 32.0)))
    assert BundleConfig.from_json(json.loads(json.dumps(changed.to_json()))) == changed
    assert changed.digest != config().digest
