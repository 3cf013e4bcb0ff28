"""Token ids wherever text is taken: lists, tensors and arrays of them, and what is no row of ids."""

import numpy as np
import pytest
import torch
from support.bundles import bundle

import hdlm

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")

MODEL = bundle()
FORMS = {
    "list": [0, 1, 2],
    "tuple": (0, 1, 2),
    "list of one list": [[0, 1, 2]],
    "tensor": torch.tensor([0, 1, 2]),
    "matrix": torch.tensor([[0, 1, 2]], dtype=torch.int32),
    "array": np.array([0, 1, 2]),
    "matrix of bytes": np.array([[0, 1, 2]], dtype=np.uint8),
    "numbers of NumPy": [np.int64(0), np.int64(1), np.int64(2)],
    "tensors of one number": [torch.tensor(0), torch.tensor(1), torch.tensor(2)],
    "list of tensors": [torch.tensor([0, 1, 2])],
}


@pytest.mark.parametrize("form", FORMS)
def test_ids_in_any_form_are_the_text_that_they_stand_for(form):
    model, ids = MODEL, FORMS[form]
    assert model.generate(ids, length=4, seed=1).tokens == model.generate("abc", length=4, seed=1).tokens
    assert next(model.stream(ids, length=4, seed=1)).tokens[0, :3].tolist() == [0, 1, 2]
    assert model.logprobs(ids).logprobs == model.logprobs("abc").logprobs
    found, said = (model.perplexity(texts, hyperschedule=hdlm.Quench(1)) for texts in (ids, "abc"))
    assert (found.nats, found.counts) == (said.nats, {"bytes": 3, "word": 1})


def test_rows_of_a_matrix_and_ragged_lists_are_several_prompts():
    model = bundle()
    found = model.generate(torch.tensor([[0, 1], [2, 3]]), length=3, seed=0)
    assert [row[:2] for row in found.tokens] == [[0, 1], [2, 3]]
    assert [len(row) for row in model.generate([[0, 1, 2], [3], "a"], length=3, seed=0).tokens] == [6, 4, 4]
    assert model.perplexity([[0, 1, 2], "abc", []], hyperschedule=hdlm.Quench(1)).rows == 2


REFUSED = {
    "text or a list of": [
        [1, [2, 3]],
        [[1], 2],
        [],
        np.array([], dtype=np.int64),
        torch.tensor(3),
        [1, "a"],
        [[1], None],
    ],
    "token = 11 is not accepted": [[3, 11], torch.tensor([[11]])],
    "token = -1 is not accepted": [np.array([-1])],
    "token = True is not accepted": [[True, False], torch.tensor([True]), np.array([[True]])],
    r"token = 1\.0 is not accepted": [[1.0, 2.0], torch.tensor([1.0]), np.array([[1.0]])],
    r"token = \[1\] is not accepted": [torch.tensor([[[1]]])],
}


@pytest.mark.parametrize(("words", "ids"), [(words, ids) for words in REFUSED for ids in REFUSED[words]], ids=str)
@pytest.mark.parametrize("method", ["generate", "stream", "logprobs", "perplexity"])
def test_what_is_no_row_of_ids_is_refused_in_one_line(method, words, ids):
    words = words.replace("text or a list of", "it must be a text, a list of texts or of token ids, a list of such")
    with pytest.raises(ValueError, match=words) as refused:
        getattr(MODEL, method)(ids)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 250


def test_a_prompt_longer_than_the_context_is_said():
    with pytest.warns(UserWarning, match="34 tokens are more than the 24 that this network was trained on"):
        bundle().generate([1] * 30)


def test_gaps_among_ids_are_none():
    model = bundle("flat")
    ids, text = (model.infill(gaps, seed=3).tokens for gaps in ([0, 1, None, None, 2], "ab[[gap:2]]c"))
    assert ids == text
    with pytest.raises(ValueError, match=r"text = \[1, 2\] has no gap: among token ids, None is one that is missing"):
        model.infill([1, 2])
    with pytest.raises(ValueError, match="text token = 'a' is not accepted"):
        model.infill(["a", None])


def test_a_model_without_a_tokenizer_takes_ids_alone():
    model = bundle("flat")
    model = hdlm.Bundle(model.model, model.config)
    assert len(model.generate([1, 2], length=3).tokens[0]) == 5
    assert len(model.infill([1, None, 2]).tokens[0]) == 3
    assert model.perplexity([1, 2]).counts == {}
    for ask in (lambda: model.generate("ab"), lambda: model.infill("a[[gap:2]]"), lambda: model.logprobs("ab")):
        with pytest.raises(ValueError, match="this model has no tokenizer: give token ids instead of text"):
            ask()
