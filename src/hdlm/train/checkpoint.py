"""Checkpoints on disk: a folder of safetensors shards, each written by the process that holds it, and `state.json`.

`torch.distributed.checkpoint` plans who writes and who reads which part of which tensor, so that any number of
processes goes on with what any other saved. `state.json` names every shard with its size and SHA-256. The folder gets
its name when all of this is on the disk. No pickle is written, and none is read. Knows no network and no optimiser.
"""

import hashlib
import io
import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load as read
from torch.distributed.checkpoint.state_dict_saver import save as write
from torch.distributed.tensor import DTensor

from hdlm import weights
from hdlm.errors import first_line
from hdlm.files import folder_written_aside, json_text
from hdlm.folders import regular_file
from hdlm.theory.numbers import is_whole

RECORD, GATHERED = "state.json", "state.safetensors"
ALONE = "alone"  # in place of a group: this process by itself, though there may be others
# Of tensors in one file of all processes together: what may exist a second time while it is written.
_FILE_BYTES = 2**28
_OURS = (".safetensors", ".metadata", ".distcp")  # what a reader of such folders may take for a part of it
_COPY = StagingOptions(use_pinned_memory=False, use_shared_memory=False, use_async_staging=False)
_COPY.use_non_blocking_copy = False

# Said to whoever saves without a group; here that is one process, and meant.
warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)


class _HashedFile(io.BufferedWriter):
    """A file that knows the SHA-256 of what was written to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        return super().write(data)


class _HashedFiles(FileSystem):
    """Where a writer makes its files; `written`: name -> size and SHA-256 of those that it has finished."""

    def __init__(self) -> None:
        self.written: dict[str, dict[str, Any]] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Any:
        with _HashedFile(Path(path)) as file:
            yield file
        self.written[Path(path).name] = {"bytes": Path(path).stat().st_size, "sha256": file.sha256.hexdigest()}


class _Writer(HuggingFaceStorageWriter):
    """Safetensors shards, a few files a process; `shards` on the first process: what all of them have written."""

    def __init__(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(str(folder), fqn_to_index_mapping=_file_numbers(tensors), save_distributed=True)
        self.fs, self.shards = _HashedFiles(), dict[str, dict[str, Any]]()

    def write_data(self, plan: Any, planner: Any) -> Any:
        done = super().write_data(plan, planner)
        told = torch.futures.Future()
        told.set_result([replace(result, storage_data=self.fs.written) for result in done.wait()[:1]])
        return told

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        for result in (result for of_one in results for result in of_one):
            self.shards |= result.storage_data


def _file_numbers(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """In which file of a process each tensor's part goes: as many together as _FILE_BYTES holds of whole tensors."""
    numbers, number, size = dict[str, int](), 1, 0
    for name, tensor in tensors.items():
        if size and size + tensor.nbytes > _FILE_BYTES:
            number, size = number + 1, 0
        numbers[name], size = number, size + tensor.nbytes
    return numbers


def staged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in the host's memory of what this process holds of tensors: training may change the originals."""
    stager = DefaultStager(_COPY)
    copies = stager.stage(dict(tensors))
    assert isinstance(copies, dict)
    stager.close()
    return copies


def save(
    folder: Path,
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, Any],
    group: Any = None,
    *,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Write a checkpoint; every process of `group` calls this with its own parts, and all raise what any one met.

    The folder appears when all shards and the record are on the disk, and then the first process does what is to be
    done `after`. `group`: one that nobody else talks in meanwhile.
    """
    if _rank(group) > 0:
        told = _from_first(None, group)
        if isinstance(told, Path):
            with suppress(Exception):  # the first process hears of it, and tells all
                _save_shards(told, tensors, group)
            told = _from_first(None, group)
        if told is not None:
            raise told
        return
    error, place_is_known = None, False
    try:
        with folder_written_aside(folder) as aside:
            _from_first(aside, group)
            place_is_known = True
            shards = _save_shards(aside, tensors, group)
            for name, record in shards.items():
                if not (aside / name).exists() or (aside / name).stat().st_size != record["bytes"]:
                    raise ValueError(
                        f"{folder}: {name}, which another process wrote, is not there: a run's folder must lie where "
                        "all its processes see it"
                    )
            (aside / RECORD).write_text(json_text({**numbers, "shards": shards}))
        after()
    except Exception as met:
        error = met
    if place_is_known or error is not None:
        _from_first(error, group)
    if error is not None:
        raise error


def _save_shards(folder: Path, tensors: Mapping[str, Tensor], group: Any) -> dict[str, dict[str, Any]]:
    """Write this process's shards; on the first process, the record of all."""
    writer = _Writer(folder, tensors)
    try:
        write(dict(tensors), storage_writer=writer, **_talking_in(group))
    except CheckpointException as error:
        raise _cause(error) from None
    return writer.shards


def _cause(error: CheckpointException) -> BaseException:
    """What went wrong where several processes worked, first of all what the system refused: a person can mend that."""
    found = [failure for failure, _ in error.failures.values()]
    return next((failure for failure in found if isinstance(failure, OSError)), found[0])


def read_numbers(folder: Path) -> dict[str, Any]:
    """What the record of a checkpoint holds beside its shards."""
    return {name: value for name, value in weights.read_json(folder / RECORD).items() if name != "shards"}


def is_gathered(folder: Path) -> bool:
    """Whether a checkpoint is one file, of an older version."""
    return "shards" not in weights.read_json(folder / RECORD) and (folder / GATHERED).exists()


def verify(folder: Path, group: Any = None) -> None:
    """Refuse a checkpoint whose shards are not those that were written, by the name of the first that is not.

    Processes share the work and the verdict.
    """
    _agree(lambda: _verify(folder, _rank(group), _size(group)), group)


def _verify(folder: Path, first: int, every: int) -> None:
    shards = _shards(folder)
    foreign = sorted(path.name for path in folder.iterdir() if path.suffix in _OURS or path.name in _OURS)
    for name in foreign:
        if name not in shards:
            raise ValueError(f"{folder / name} is not accepted: {RECORD} beside it does not name it")
    for name, record in shards.items():
        size = regular_file(folder / name).stat().st_size
        if size != record["bytes"]:
            raise ValueError(f"{folder / name} is damaged: it has {size:,} bytes, and had {record['bytes']:,}")
    for name in list(shards)[first::every]:
        with (folder / name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != shards[name]["sha256"]:
            raise ValueError(f"{folder / name} is damaged: its SHA-256 is not the one that {RECORD} gives")


def _shards(folder: Path) -> dict[str, dict[str, Any]]:
    """The shards that a record names."""
    shards = weights.read_json(folder / RECORD).get("shards")
    if not isinstance(shards, dict) or not all(_is_shard(name, record) for name, record in shards.items()):
        raise ValueError(f"{folder / RECORD} is damaged: it must name its shards, each with bytes and sha256")
    return shards


def _is_shard(name: str, record: Any) -> bool:
    plain = Path(name).name == name and name.endswith(".safetensors") and "\0" not in name
    return (
        plain and isinstance(record, dict) and is_whole(record.get("bytes")) and isinstance(record.get("sha256"), str)
    )


def load(folder: Path, tensors: Mapping[str, Tensor], *, whole: bool = True, group: Any = None) -> None:
    """Fill tensors, each process its own parts, from a checkpoint that `verify` has let through.

    `whole`: refuse one that holds other tensors too.
    """
    _agree(lambda: _compare(folder, tensors, whole=whole), group)
    try:
        read(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)), **_talking_in(group))
    except CheckpointException as error:
        raise ValueError(f"{folder} is damaged: {first_line(_cause(error))}") from None
    parts = {name: tensor.to_local() if isinstance(tensor, DTensor) else tensor for name, tensor in tensors.items()}
    _agree(lambda: weights.check_finite(parts, source=folder), group)


def _compare(folder: Path, tensors: Mapping[str, Tensor], *, whole: bool) -> None:
    """Refuse a checkpoint of other tensors than these, or one that does not hold all of each."""
    try:
        held = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except Exception as error:
        raise ValueError(f"{folder} is damaged: {first_line(error)}") from None
    found = {name: tuple(tensor.size) for name, tensor in held.items()}  # pyright: ignore[reportAttributeAccessIssue]
    refuse_others(folder, tensors, found if whole else {name: found[name] for name in found.keys() & tensors.keys()})
    for name in tensors:
        parts = sum(math.prod(chunk.sizes) for chunk in held[name].chunks)  # pyright: ignore[reportAttributeAccessIssue]
        if parts != math.prod(found[name]):
            raise ValueError(f"{folder} is damaged: its shards hold {parts:,} numbers of {name} {found[name]}")


def refuse_others(folder: Path, tensors: Mapping[str, Tensor], found: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a checkpoint whose tensors, name -> shape, are not these."""
    wanted = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    odd = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if odd:
        raise ValueError(f"{folder} is the checkpoint of another network: {odd[0]} differs")


def _agree(check: Callable[[], None], group: Any) -> None:
    """Do a check on every process, and have all refuse what one refuses: else the others would wait for it."""
    found = None
    try:
        check()
    except ValueError as error:
        found = error
    if _size(group) > 1:
        verdicts: list[Any] = [None] * _size(group)
        dist.all_gather_object(verdicts, found, group=group)
        found = next((verdict for verdict in verdicts if verdict is not None), None)
    if found is not None:
        raise found


def _from_first(value: Any, group: Any) -> Any:
    """What the first process has, on all of them."""
    if _size(group) == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0, group=group)
    return values[0]


def _talking_in(group: Any) -> dict[str, Any]:
    """The same group in the words of `torch.distributed.checkpoint`."""
    return {"no_dist": True} if _size(group) == 1 else {"process_group": group}


def _rank(group: Any) -> int:
    return 0 if group is ALONE or not dist.is_initialized() else dist.get_rank(group)


def _size(group: Any) -> int:
    return 1 if group is ALONE or not dist.is_initialized() else dist.get_world_size(group)
