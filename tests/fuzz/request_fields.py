"""What stands in the fields of random requests: values that are right, on the edge or wrong, and junk."""

import math

from support.bundles import SAMPLERS

PROCESSES = {"hybrid": "epsilon", "masked": "absorbing", "aligned": "absorbing", "even": "uniform", "ids": "gamma"}
POSTS = ("/v1/completions", "/v1/chat/completions", "/v1/fill", "/v1/score", "/v1/stream")
HOW = {
    "temperature": [0, 0.5, 1, 1e-300, 1e300, -0.0, -1, "1"],
    "top_p": [0.5, 1, 1e-300, 1.0000001, 0, True],
    "top_k": [1, 3, 11, 99, 2**63 - 1, 0, 1.0],
    "seed": [0, 7, "12", 2**63 - 1, 2**63, "9" * 19, "0" * 30, "-1", "1_0", "٣", 1.0],
    "hyperschedule": ["ar", "block", "slide", "flat", "custom", "quench", "AR", ""],
    "width": [1, 4, 24, 25, 10**9, 0],
    "rate": [1, 2, 0.5, 0.25, 1e-9, 1e18, 1e-320, 13],
    "levels": [[[1, 1], [0, 0]], [[2] * 6, [1, 2, 2, 1, 2, 0], [0, 1, 1, 0, 0, 0], [0] * 6], [[1] * 99] * 2, [[]]],
    "sampler": [*SAMPLERS["absorbing"], *SAMPLERS["gamma"], "speculative", "autoregression", "ddpm"],
    "eta": [0, 0.5, 1, 1.1],
    "threshold": [0, 0.5, 1e308],
    "speculate": [True, False, 1],
    "ignore_eos": [True, False],
    "n": [1, 2, 16, 17],
    "max_tokens": [1, 8, 20, 24, 25],
    "stop": ["a", ["a", "bc"], ["a"] * 5, [""], "x" * 201, []],
    "user": ["u", "", "\n\x00"],
    "logit_bias": [{}, {"1": 1}],
    "frequency_penalty": [0, 0.0, False, 1],
    "model": [*PROCESSES, "nobody", "hybrid/"],
    "prompt": ["", "abc", "a" * 24, "a" * 25, [], [0, 1], [11], [[0], []], ["a", "b"], ["a"] * 17, [[""]], "Q"],
    "stream": [True, False, "true"],
    "stream_options": [{}, {"include_usage": True}, {"include_usage": 1}, {"x": 1}],
    "logprobs": [0, 2, 20, 21, True],
    "top_logprobs": [0, 2, 21],
    "max_completion_tokens": [1, 9, 25],
    "echo": [True, False],
    "best_of": [1, 2, 1.0],
    "suffix": ["", "a"],
    "store": [False, True],
    "messages": [[], [{}], [{"role": "user"}], [{"role": "user", "content": [{"type": "text", "text": "ab"}]}], [3]],
    "text": ["", "a[[gap:3]]b", "a[[gap:1-3]]b", "[[gap]]", "a[[gap]]b[[gap:2]]", "[[gap:0]]", "[[gap:", "[[gap:9-2]]"],
    "samples": [1, 64, 65],
    "top": [0, 10, 11],
    "replay": [True, False],
}  # fmt: skip
JUNK = [
    None, True, 0, -1, 2.5, 1e308, -1e-308, 2**63, 10**400, "", " ", "x" * 5000, "\ud800", "a\udfff", "\x00", "\u202e",
    "💥", "a\nb", "NaN", [], [[]], {}, {"a": 1}, [None], [1e9], ["\ud800"], [{}], {"\ud800": 1}, [[[[[1]]]]],
    [1] * 3000, math.nan, math.inf,
]  # fmt: skip
