"""Published points to compare with, from the paper's table tab:eta: epsilon-hybrid models on OpenWebText.

Generative perplexity under GPT-2 large, MAUVE and unigram entropy as printed there. Other data, tokenizer and judge
than most evaluations here: marks for orientation, not for comparison digit by digit.
"""

_METRICS = ("gen_ppl", "entropy", "mauve")
_ROWS = {  # each metric at rates 8, 4, 2, 1
    "flat, original": ((130.78, 124.75, 121.90, 129.52), (5.51, 5.47, 5.49, 5.50), (0.950, 0.944, 0.848, 0.779)),
    "flat, acs 0.25": ((79.64, 65.06, 55.05, 49.09), (5.35, 5.28, 5.24, 5.19), (0.955, 0.821, 0.859, 0.928)),
    "flat, acs 0.05": ((105.94, 93.91, 83.83, 77.16), (5.46, 5.48, 5.31, 5.29), (0.846, 0.99, 0.865, 0.936)),
    "flat, acs 0.01": ((84.28, 69.84, 61.35, 43.98), (5.36, 5.33, 5.28, 5.18), (0.848, 0.928, 0.957, 0.947)),
    "flat, acs 0.001": ((80.37, 64.42, 55.48, 45.80), (5.35, 5.31, 5.25, 5.15), (0.871, 0.949, 0.919, 0.998)),
    "block, original": ((148.45, 130.16, 139.64, 142.13), (5.39, 5.35, 5.43, 5.46), (0.916, 0.976, 0.778, 0.847)),
    "block, acs 0.25": ((112.87, 64.01, 54.67, 43.32), (5.34, 5.13, 5.01, 4.78), (0.962, 0.948, 0.652, 0.653)),
    "block, acs 0.05": ((104.26, 76.98, 71.77, 59.15), (5.42, 5.25, 5.38, 5.25), (0.964, 0.811, 0.813, 0.916)),
    "block, acs 0.01": ((144.71, 107.06, 101.30, 75.91), (5.53, 5.30, 5.38, 5.35), (0.568, 0.746, 0.767, 0.974)),
    "block, acs 0.001": ((150.41, 150.32, 139.66, 114.12), (5.48, 5.54, 5.55, 5.48), (0.979, 0.847, 0.977, 0.906)),
}

PUBLISHED = {
    metric: [value for columns in _ROWS.values() for value in columns[number]] for number, metric in enumerate(_METRICS)
}
