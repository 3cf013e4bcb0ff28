"""Shared by all tests: one seed, one thread a worker, and the processes that most tests run over."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
