"""Which device to compute on, by a user's word."""

import torch


def choose_device(name: str | torch.device | None) -> torch.device:
    """A device by its name; None: CUDA where there is one."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"device = {name!r} is not accepted: it must be cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device = {name!r} is not accepted: there is no CUDA here")
    return device
