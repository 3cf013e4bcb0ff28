"""What is no distribution, and ids that are no tokens, are refused by their names."""

import re

import pytest
import torch

import hdlm
from hdlm.objectives.epsilon_bound import restoration_bound, shuffled_bound
from hdlm.objectives.score_entropy import score_entropy

N = 5
GAMMA, EPSILON = hdlm.GammaHybrid(N, 0.3), hdlm.EpsilonHybrid(N, 0.3)
GOOD = {
    "log_score": torch.zeros(3, N),
    "log_pi": torch.zeros(3, N).log_softmax(-1),
    "xt": torch.tensor([0, N, 4]),
    "x0": torch.tensor([0, 1, 4]),
    "shuffled": torch.tensor([0, 1, 4]),
    "t": torch.full((3,), 0.5),
}
BAD = {
    "log_score": torch.zeros(3, N + 1),
    "log_pi": torch.zeros(3, N - 1),
    "xt": torch.tensor([0, N + 1, 4]),
    "x0": torch.tensor([0, N, 4]),
    "shuffled": torch.tensor([-1, 1, 4]),
}
CALLS = {
    score_entropy: (GAMMA, ("log_score", "xt", "x0", "t")),
    shuffled_bound: (EPSILON, ("log_pi", "xt", "shuffled", "t")),
    restoration_bound: (EPSILON, ("log_pi", "shuffled", "x0")),
}
CASES = [
    (score_entropy, "log_score", "has shape (3, 6)"),
    (score_entropy, "xt", "holds the id 6"),
    (score_entropy, "x0", "holds the id 5"),
    (shuffled_bound, "log_pi", "has shape (3, 4)"),
    (shuffled_bound, "shuffled", "holds the id -1"),
    (restoration_bound, "log_pi", "has shape (3, 4)"),
    (restoration_bound, "shuffled", "holds the id -1"),
    (restoration_bound, "x0", "holds the id 5"),
]


@pytest.mark.parametrize(("function", "name", "words"), CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_what_is_wrong_is_named(function, name, words):
    process, names = CALLS[function]
    assert function(process, *(GOOD[each] for each in names)).isfinite().all()
    with pytest.raises(ValueError, match=rf"^{name} {re.escape(words)}"):
        function(process, *((BAD if each == name else GOOD)[each] for each in names))
