"""Where models, data and the cache lie, and which files may be opened there. Knows nothing of what is in them.

A model folder may come from anybody: what is read of it are regular files of bounded size, since a pipe would be waited
for without end, and a file of gigabytes where kilobytes are due would fill the memory.
"""

import importlib.util
import os
import re
import stat
from pathlib import Path

from hdlm.errors import first_line

SHIPPED = Path(__file__).parent / "models"
GGUF_SUFFIX = ".gguf"
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
TORCH_SUFFIXES = (".bin", ".pth", ".pt", ".ckpt")


def data_root() -> Path:
    """Where named sets and tokenizers are looked for: $HDLM_DATA, else the user's cache."""
    return Path(os.environ.get("HDLM_DATA") or cache_root() / "data")


def cache_root() -> Path:
    """Where files that can be made again are kept: $HDLM_CACHE, else ~/.cache/hdlm."""
    return Path(os.environ.get("HDLM_CACHE") or Path.home() / ".cache" / "hdlm")


def shipped_models() -> list[str]:
    """Names of the models that come with this package."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/config.json"))


def regular_file(path: str | Path, *, largest: int | None = None) -> Path:
    """`path` itself, refused unless it is a regular file (or leads to one) of at most `largest` bytes."""
    path = Path(path)
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path} is not accepted: it is no regular file")
    if largest is not None and found.st_size > largest:
        raise ValueError(f"{path} is not accepted: it has {found.st_size:,} bytes, and at most {largest:,} are read")
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise ValueError(f"{path} cannot be read: Permission denied")
    return path


def unreadable(path: Path, error: Exception) -> ValueError:
    """The refusal of a file or folder that the system does not let us read."""
    return ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or first_line(error)}")


def is_there(path: Path) -> bool:
    """Whether a folder has an entry of this name, be it a link that leads nowhere."""
    return os.path.lexists(path)


def as_path(name: str, value: str | Path) -> Path:
    """`value` as a path, refused if it is no name of anything."""
    if not isinstance(value, str | os.PathLike) or value == "" or "\0" in os.fsdecode(value):
        raise ValueError(f"{name} = {value!r} is not accepted: it must be a str or a Path, not empty, without NUL")
    return Path(value)


def package_folder(name: str) -> Path | None:
    """Where an installed package lies, which is not imported: it might want more than the files in it."""
    try:
        found = importlib.util.find_spec(name.replace("-", "_")) if _PACKAGE.fullmatch(name) else None
    except (ImportError, ValueError):
        return None
    return None if found is None or found.origin is None else Path(found.origin).parent


def model_place(name: str | Path) -> Path:
    """Where a model lies: a folder, or a GGUF file.

    `name`: a path to either, a model of this package, an installed package that carries a GGUF file, or owner/model
    from the hub, of which weights and what a tokenizer is made of alone.
    """
    path = as_path("name", name)
    try:
        if str(name) in shipped_models() and not (path / "config.json").exists():
            return SHIPPED / str(name)
        if path.is_dir():
            return _inside(path)
        if path.exists() and path.suffix != GGUF_SUFFIX:
            raise ValueError(f"{name} is not accepted: it is a file, and a model is a folder or a GGUF file")
        if path.exists():
            return path
        package = package_folder(str(name))
        if package is not None and any(package.glob(f"*{GGUF_SUFFIX}")):
            return _inside(package)
    except OSError as error:
        raise unreadable(path, error) from None
    if str(name).count("/") != 1 or str(name).startswith((".", "/", "~")):
        known = "".join(f"{model}, " for model in shipped_models())
        raise ValueError(
            f"{name} does not exist: it must be {known}a model folder, a GGUF file, an installed package that carries "
            "one, or owner/model on the hub (docs/models.md has the kinds of models)"
        )
    return _from_hub(str(name))


def _inside(folder: Path) -> Path:
    """A folder, or the one GGUF file in it, where it has no config.json."""
    files = [] if is_there(folder / "config.json") else sorted(folder.glob(f"*{GGUF_SUFFIX}"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:4])
        raise ValueError(f"{folder} is not accepted: it holds several GGUF files ({names}): name one")
    return files[0] if files else folder


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ValueError(
            f"{name} is no folder here, and reading it from the hub needs: pip install 'hdlm[hub]'"
        ) from None
    patterns = ["*.json", "*.jinja", "*merges.txt", "*.safetensors", *(f"*{suffix}" for suffix in TORCH_SUFFIXES)]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:
        raise ValueError(f"{name} is no folder here and could not be had from the hub: {first_line(error)}") from None
