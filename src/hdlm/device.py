"""Which device and which precision to compute in, by a user's word."""

import torch

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ON_CPU = ("float32", "float64")


def choose_device(name: str | torch.device | None) -> torch.device:
    """A device by its name; None: CUDA where there is one."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name) if isinstance(name, str | torch.device) else None
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"device = {name!r} is not accepted: it must be cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device = {name!r} is not accepted: there is no CUDA here")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device = {name!r} is not accepted: there are {torch.cuda.device_count()} CUDA devices here")
    return device


def choose_dtype(name: str | torch.dtype | None, device: torch.device) -> torch.dtype | None:
    """A precision by its name, refused where a device does not compute in it; None: as it is."""
    if name is None:
        return None
    word = name if isinstance(name, str) else str(name).removeprefix("torch.")
    if word not in DTYPES:
        raise ValueError(f"dtype = {name!r} is not accepted: it must be one of {', '.join(DTYPES)}, or None")
    if device.type == "cpu" and word not in _ON_CPU:
        raise ValueError(f"dtype = {word} is not accepted on the CPU: it must be {' or '.join(_ON_CPU)}")
    return DTYPES[word]
