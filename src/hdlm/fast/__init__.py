"""What exists for speed alone: planning ahead, CUDA graphs, fused layers, kernels, other layouts of memory.

Everything here does what the ground floor does (`sampling/loop.py`, `nn/`, `train/loss.py`) with less work, and is held
equal to it by tests/fast. Chosen in `hdlm.backend` and nowhere else: without this folder everything still works.
"""
