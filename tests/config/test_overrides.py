"""Recipe flags as words: what is taken, and that whatever is wrong is refused by the name of its field."""

import math
from dataclasses import replace

import pytest

from hdlm.config.build import check_recipe
from hdlm.config.fields import describe
from hdlm.config.mixture import MixtureMember
from hdlm.config.parse import override, overrides
from hdlm.config.process import NoiseConfig, ProcessConfig
from hdlm.config.recipe import LossSettings, ModelSettings, OptimizerSettings, Recipe
from hdlm.config.recipes import all_recipes, get

BASE = Recipe("base", length=24, schedules=(MixtureMember("block", 6), MixtureMember("flat", share=2.0)), shifted=True)
HUGE = "1" + "0" * 400
WRONG = {
    "model.foo 3": r"model\.foo = '3' is not accepted: the fields there are condition_width, .* width$",
    "model.widht 3": r"model\.widht = '3' is not accepted: .*; did you mean model\.width\?$",
    "optimzer.lr 1": r"optimzer\.lr = '1' is not accepted: .*; did you mean optimizer\?$",
    "lr 1": r"lr = '1' is not accepted: .*; did you mean optimizer\.lr\?$",
    "loss 1": r"loss = '1' is not accepted: it is a group of fields, beta1, ",
    "steps.x 1": r"steps\.x = '1' is not accepted: there are no fields$",
    "schedules.2.width 3": r"schedules\.2\.width = '3' is not accepted: '2' must be in 0\.\.1$",
    "schedules.0.levels 3": r"schedules\.0\.levels = '3' is not accepted: it must be a list or none$",
    "process.noise.settings 3": r"process\.noise\.settings = '3' is not accepted: it must be none, or numbers by names",
    "steps many": "steps = 'many' is not accepted: it must be a whole number below 2\\^63$",
    "steps 1.5": "steps = '1.5' is not accepted: it must be a whole number",
    "steps none": "steps = 'none' is not accepted: it must be a whole number",
    f"steps {HUGE}": r"steps = '1000+\.\.\.0+' is not accepted: it must be a whole number below 2\^63$",
    "steps 9223372036854775808": "steps = '9223372036854775808' is not accepted",
    "steps 0": "steps = 0 is not accepted: it must be an integer >= 1",
    "seed -1": "seed = -1 is not accepted: it must be an integer >= 0",
    "shifted maybe": "shifted = 'maybe' is not accepted: it must be true or false",
    "ema 1": "ema = 1.0 is not accepted",
    "optimizer.lr inf": r"optimizer\.lr = 'inf' is not accepted: it must be a finite number$",
    f"optimizer.lr {HUGE}": r"optimizer\.lr = .* is not accepted: it must be a finite number$",
    "optimizer.weight_decay nan": r"optimizer\.weight_decay = 'nan' is not accepted: it must be a finite number$",
    "optimizer.weight_decay -1": r"optimizer\.weight_decay = -1\.0 is not accepted: it must be a finite number >= 0$",
    "optimizer.beta1 1": r"optimizer\.beta1 = 1\.0 is not accepted: it must be in \[0, 1\)",
    "optimizer.final_share 2": r"optimizer\.final_share = 2\.0 is not accepted: it must be a number in \[0, 1\]",
    "optimizer.kind adam": r"optimizer\.kind = 'adam' is not accepted: .* adamw, muon; did you mean adamw\?$",
    "loss.lambda_ nan": r"loss\.lambda_ = 'nan' is not accepted: it must be a finite number$",
    "loss.beta2 -1": r"loss\.beta2 = -1\.0 is not accepted",
    "schedules.0.share nan": r"schedules\.0\.share = 'nan' is not accepted: it must be a finite number$",
    "schedules.1.share 0": r"schedules\.1\.share = 0\.0 is not accepted: it must be a finite number above 0$",
    "schedules.1.share 1e300": r"schedules\.1\.share = 1e\+300 is not accepted: .* at most 1e\+09$",
    "schedules.0.kind custom": r"schedules\.0\.kind = 'custom' is not accepted: custom, and nothing else, is given by",
    "process.gamma nan": r"process\.gamma = 'nan' is not accepted: it must be a finite number or none$",
    "process.noise.settings.eps inf": r"process\.noise\.settings\.eps = 'inf' is not accepted",
    "model.heads 7": r"model\.heads = 7 is not accepted: it must divide width = 768$",
    "model.dropout 1": r"model\.dropout = 1\.0 is not accepted",
}
UNBUILT = {
    "schedules.0.kind blok": r"schedules\.0\.kind = 'blok' is not accepted: .* slide, custom; did you mean block\?$",
    "schedules.0.width 25": r"schedules\.0\.width = 25 is not accepted: it must be an integer in 1\.\.24$",
    "schedules.0.width null": r"schedules\.0\.width = None is not accepted: the kind 'block' needs one$",
    "schedules.1.width 3": r"schedules\.1\.width = 3 is not accepted: the kind 'flat' takes rate$",
    "process.kind gama": r"process\.kind = 'gama' is not accepted: .* gamma, epsilon; did you mean gamma\?$",
    "process.kind gamma": r"process\.gamma = None is not accepted: the kind 'gamma' needs one$",
    "process.epsilon 0.1": r"process\.epsilon = 0\.1 is not accepted: the kind 'absorbing' takes nothing$",
    "process.noise.kind loglin": r"process\.noise\.kind = 'loglin' is not accepted: .*; did you mean loglinear\?$",
    "process.noise.settings.eps 0.1": r"process\.noise\.settings\.eps = 0\.1 is not accepted: .* takes nothing$",
}


@pytest.mark.parametrize("words", [*WRONG, *UNBUILT])
def test_what_is_wrong_is_refused_in_a_line_that_names_the_field(words):
    with pytest.raises(ValueError, match=(WRONG | UNBUILT)[words]) as refused:
        check_recipe(override(BASE, *words.split(" ", 1)))
    assert "\n" not in str(refused.value)
    assert "__init__" not in str(refused.value)


def test_settings_of_a_kind_are_checked_with_it():
    loglinear = [("process.noise.kind", "loglinear"), ("process.noise.settings.eps", "2")]
    with pytest.raises(ValueError, match=r"^process\.noise\.settings\.eps = 2\.0 is not accepted: it must be a number"):
        check_recipe(overrides(BASE, loglinear))
    with pytest.raises(ValueError, match=r"^process\.gamma = 2\.0 is not accepted: it must be a number in \[0, 1\]"):
        check_recipe(overrides(BASE, [("process.kind", "gamma"), ("process.gamma", "2")]))


def test_several_flags_count_together_in_any_order():
    """Each alone would be refused."""
    changes = [("shifted", "false"), ("schedules", "flat"), ("loss.beta1", "0")]
    quench = replace(BASE, schedules=(MixtureMember("quench"),), loss=LossSettings(beta1=1.0))
    with pytest.raises(ValueError, match=r"shifted = False is not accepted"):
        override(quench, "shifted", "false")
    for order in (changes, changes[::-1]):
        assert overrides(quench, order) == replace(BASE, shifted=False, schedules=(MixtureMember("flat"),))


@pytest.mark.parametrize("word", ["none", "null", "None", "NULL"])
def test_nothing_has_two_words(word):
    assert override(replace(BASE, init_from="x"), "init_from", word).init_from is None
    noisy = replace(BASE, process=ProcessConfig(noise=NoiseConfig("loglinear", {"eps": 0.01})))
    assert override(noisy, "process.noise.settings", word).process.noise.settings == {}
    assert override(noisy, "process.noise.settings.eps", "0.5").process.noise.settings == {"eps": 0.5}


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda bad: OptimizerSettings(lr=bad), "optimizer.lr"),
        (lambda bad: LossSettings(lambda_=bad), "loss.lambda_"),
        (lambda bad: ModelSettings(dropout=bad), "model.dropout"),
        (lambda bad: MixtureMember(share=bad), "share"),
        (lambda bad: ProcessConfig("gamma", gamma=bad), "process.gamma"),
        (lambda bad: NoiseConfig("loglinear", {"eps": bad}), "process.noise.settings.eps"),
        (lambda bad: replace(BASE, ema=bad), "ema"),
    ],
)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 10**400, "1", True, [1]], ids=lambda bad: str(bad)[:5])
def test_what_is_no_finite_number_is_refused_at_once(make, name, bad):
    with pytest.raises(ValueError, match=f"^{name} = ".replace(".", r"\.")) as refused:
        make(bad)
    assert len(str(refused.value)) < 160


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": {"lr": math.nan}}, r"^recipe\.optimizer\.lr = nan is not accepted: it must be a finite number$"),
        ({"schedules": [{"share": math.inf}]}, r"^recipe\.schedules\.0\.share = inf is not accepted"),
        ({"process": {"noise": {"settings": {"eps": math.nan}}}}, r"^recipe\.process\.noise\.settings\.eps = nan "),
        ({"steps": 10**400}, r"^recipe\.steps = 1000+\.\.\.0+ is not accepted: it must be a whole number below 2\^63$"),
        ({"length": "24"}, r"^recipe\.length = '24' is not accepted: it must be a whole number"),
        ({"schedules": {}}, r"^recipe\.schedules = {} is not accepted: it must be a list$"),
        ({"schedules": [3]}, r"^recipe\.schedules\.0 = 3 is not accepted: it must be an object$"),
        ({"modle": {}}, r"^recipe has the unknown field 'modle': it may have .*; did you mean model\?$"),
        ({"schedules": [{"kind": "custom", "levels": [[1.5], [0]]}]}, r"^recipe\.schedules\.0\.levels\.0\.0 = 1\.5 "),
    ],
)
def test_a_recipe_of_json_is_refused_by_the_same_names(change, message):
    with pytest.raises(ValueError, match=message):
        Recipe.from_json(BASE.to_json() | change)


def test_a_recipe_of_json_needs_its_name():
    with pytest.raises(ValueError, match=r"^recipe\.name is missing$"):
        Recipe.from_json({})


def test_every_field_is_listed_with_its_meaning_and_takes_its_own_value():
    for recipe in (BASE, get("laptop"), get("owt-abl-e"), get("stories")):
        listed = list(describe(recipe))
        for field in listed:
            assert field.about, f"{field.name} has no meaning"
            assert len(field.about) <= 120
            assert override(recipe, field.name, field.value) == recipe
        assert len({field.name for field in listed}) == len(listed)
    assert set(all_recipes()["laptop"].to_json()) <= {field.name.split(".")[0] for field in listed}
