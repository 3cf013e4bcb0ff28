"""Shared by all tests: one seed, one thread a worker, and the processes that most tests run over."""

import os

import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run on the CPU, step by step


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
