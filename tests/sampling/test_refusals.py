"""What generation refuses, in one line that names the value, and what it warns of."""

import warnings

import pytest
from support.bundles import CONTEXT, bundle

import hdlm
from hdlm.config.schedule import ScheduleConfig

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("a prompt of 20 tokens and 10 new ones", {"prompt": "a" * 20, "hyperschedule": hdlm.Flat(10)}),
        ("eta = 1.5", {"sampler": "acs", "eta": 1.5}),
        ("eta = 0.1 is not accepted for sampler 'original'", {"sampler": "original", "eta": 0.1}),
        ("sampler = 'magic' is not accepted: it must be one of posterior, original", {"sampler": "magic"}),
        ("sampler 'ar' does not fit Block", {"sampler": "ar", "kind": "block"}),
        ("temperature = -1", {"temperature": -1}),
        ("top_p = 0 ", {"top_p": 0.0}),
        ("top_k = 0", {"top_k": 0}),
        ("precision = 'float16'", {"precision": "float16"}),
        ("backend = 'quick'", {"backend": "quick"}),
        ("cache = 1 ", {"cache": 1}),
        ("batch_size = 0", {"batch_size": 0}),
        ("num_samples = 0", {"num_samples": 0}),
        ("length = 0", {"length": 0}),
        ("prompt token = 11", {"prompt": [[11]]}),
        ("the character 'é'", {"prompt": "é"}),
        ("seed = -1", {"seed": -1}),
        ("give it alone", {"hyperschedule": hdlm.Block(8, 4), "rate": 2}),
        ("hyperschedule = 'block'", {"hyperschedule": "block"}),
        ("prompt token = 1.5", {"prompt": [[1.5]]}),
        ("no valid Unicode", {"prompt": "\udcff"}),
    ],
)
def test_bad_input_is_refused_in_one_line(words, settings):
    with pytest.raises(ValueError, match=words):
        bundle().generate(**settings)


@pytest.mark.parametrize("prompt", [5, 1.5, True, object(), [None], ["a", 5], b"ab", [b"ab"]])
@pytest.mark.parametrize("method", ["generate", "stream"])
def test_what_is_no_prompt_is_refused(method, prompt):
    with pytest.raises(
        ValueError, match=r"prompt = .* is not accepted: it must be a text, a list of texts or of token"
    ):
        getattr(bundle(), method)(prompt)


@pytest.mark.parametrize("text", [5, None, b"a[[gap:2]]"])
def test_what_is_no_text_has_no_gaps(text):
    with pytest.raises(ValueError, match=r"text = .* is not accepted: it must be a str"):
        bundle("flat").infill(text)


@pytest.mark.parametrize(
    ("process", "sampler", "words"),
    [
        ("uniform", "original", "needs a process that masks"),
        ("uniform", "confidence", "needs a process that masks"),
        ("epsilon", "tau-leaping", "does not fit EpsilonHybrid"),
        ("absorbing", "acs", "'remask' corrects such models"),
        ("absorbing", "euler", "needs finite noise"),
    ],
)
def test_a_sampler_that_does_not_fit_is_refused(process, sampler, words):
    with pytest.raises(ValueError, match=words):
        bundle(process=process).generate(sampler=sampler)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"length": 30}, "30 tokens are more than the 24"),
        (
            {"width": 8, "length": 16},
            r"Block\(length=16, width=8, rate=1\) is outside what this network was trained on",
        ),
        ({"hyperschedule": hdlm.Flat(8)}, "outside what"),
        ({"prompt": "abcdef", "width": 2, "length": 4}, "outside what"),
        ({"prompt": "abcdef", "kind": "slide", "width": 3, "length": 3}, "outside what"),
    ],
)
def test_what_was_not_trained_is_said(settings, words):
    with pytest.warns(UserWarning, match=words):
        bundle().generate(**settings)


def test_what_was_trained_is_not_remarked_upon():
    model = bundle(mixture=(ScheduleConfig("flat", CONTEXT), ScheduleConfig("slide", CONTEXT, width=8)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(length=20, rate=4)
        model.generate(hyperschedule=hdlm.Flat(CONTEXT))
        model.generate(hyperschedule=hdlm.Slide(20, 8))
        model.generate(hyperschedule=hdlm.Quench(20))
        model.generate("abcdef", length=3)  # less than a block, as the last one of most texts is


def test_more_text_than_fits_is_counted_over_all_prompts():
    """16 bytes a token: as asked for, and as written."""
    model = bundle("flat", process="absorbing")
    with pytest.raises(ValueError, match=r"^2,000,000,000,000 samples of 5 tokens"):
        model.generate(["ab", "c"], num_samples=10**12, length=3)
    with pytest.raises(ValueError, match=r"^1,000,000,000,000 samples of 5 tokens"):
        model.infill("ab[[gap:3]]", num_samples=10**12)
