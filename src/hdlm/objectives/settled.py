"""The settled part of the loss (eq. mainloss, its first term) and its reweighting by position (eq. reweighting)."""

import torch
from torch import Tensor


def position_weights(length: int, width: int) -> Tensor:
    """w(i) = floor(i / width) / (ceil(length / width) - 1) for i in 0..length-1, all 1 where there is one block."""
    blocks = -(-length // width)
    if blocks == 1:
        return torch.ones(length)
    return (torch.arange(length) // width) / (blocks - 1)
