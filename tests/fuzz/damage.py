"""Files made wrong: JSON with one value changed, text cut or garbled, safetensors that lie, odd kinds of files."""

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz import pool


def damage_bytes(rng: random.Random, path: Path) -> str:
    """Cut, garble, empty or re-encode any file; what was done."""
    data = path.read_bytes()
    how = rng.choice(("empty", "cut", "cut", "garble", "garble", "bom", "utf-16", "double", "tail", "zeros", "nest"))
    at = rng.randrange(len(data) + 1)
    changed = {
        "empty": b"",
        "cut": data[:at],
        "garble": data[:at] + rng.randbytes(4) + data[at + 4 :],
        "bom": b"\xef\xbb\xbf" + data,
        "utf-16": data[:4000].decode("latin-1").encode("utf-16"),
        "double": data + data,
        "tail": data + b"\n{}",
        "zeros": bytes(len(data)),
        "nest": b"[" * 100_000,
    }[how]
    path.write_bytes(changed)
    return how


def damage_kind(rng: random.Random, path: Path) -> str:
    """Put something else where a file is; what it is."""
    how = rng.choice(("missing", "folder", "fifo", "loop", "dangling", "unreadable", "link"))
    data = path.read_bytes()
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "fifo":
        os.mkfifo(path)
    elif how in ("loop", "dangling"):
        path.symlink_to(path.name if how == "loop" else "nowhere")
    elif how == "link":
        path.with_name("elsewhere").write_bytes(data)
        path.symlink_to("elsewhere")
    elif how == "unreadable":
        path.write_bytes(data)
        path.chmod(0)
    return how


def damage_json(rng: random.Random, path: Path) -> str:
    """Change, rename, remove or add one value of a JSON file; what was done."""
    data = json.loads(path.read_text())
    places = list(_places(data))
    holder, key, name = rng.choice(places)
    how = rng.choice(("set", "set", "set", "set", "remove", "rename", "add"))
    if how == "set":
        holder[key] = pool.json_value(rng)
        name += f" = {str(holder[key])[:30]!r}"
    elif how == "remove":
        del holder[key]
    elif isinstance(holder, dict):
        holder[rng.choice(("x", "", "é", "__class__", "name"))] = holder.pop(key) if how == "rename" else 1
    else:
        holder.append(pool.json_value(rng))
    path.write_text(json.dumps(data))
    return f"{how} {name}"


def _places(value: Any, name: str = "") -> list[tuple[Any, Any, str]]:
    """Every place inside a JSON value: what holds it, its key there, and its name."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    found = []
    for key in keys:
        found.append((value, key, f"{name}.{key}"))
        found += _places(value[key], f"{name}.{key}")
    return found


def read_tensors(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and body of a safetensors file."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def write_tensors(path: Path, header: dict[str, Any], body: bytes, size: int | None = None) -> None:
    """A safetensors file, whose header may lie about its own size."""
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    path.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + body)


def damage_tensors(rng: random.Random, path: Path) -> str:
    """One lie in a safetensors file; what it is."""
    header, body = read_tensors(path)
    name = rng.choice([name for name in header if name != "__metadata__"])
    entry, size = header[name], None
    how = rng.choice(
        ("dtype", "shape", "huge shape", "offsets", "rename", "remove", "metadata", "size", "cut", "grow", "overlap")
    )
    if how == "dtype":
        entry["dtype"] = rng.choice(("F16", "BF16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "X", "", None, 3))
    elif how == "shape":
        entry["shape"] = rng.choice(
            ([], [-1], entry["shape"][::-1], [*entry["shape"], 1], [0], "x", None, [1.5], [[1]])
        )
    elif how == "huge shape":
        entry["shape"] = rng.choice(([2**31, 2**31], [2**63], [2**62, 4], [10**30], [1] * 1000))
    elif how == "offsets":
        entry["data_offsets"] = rng.choice(([0, 0], [0, 2**63], [-4, 4], [8, 4], [0], None, "x", [0, len(body)]))
    elif how == "rename":
        header[rng.choice(("x", "", "é", "../x", "\ud800"))] = header.pop(name)
    elif how == "remove":
        del header[name]
    elif how == "metadata":
        header["__metadata__"] = rng.choice((None, {}, {"config": "0" * 64}, {"config": 3}, [], "x", {"format": "tf"}))
    elif how == "size":
        size = rng.choice((0, 1, 2**40, 2**63, 2**64 - 1, 7))
    elif how == "overlap":
        for one in header.values():
            if isinstance(one, dict) and "data_offsets" in one:
                one["data_offsets"] = list(entry["data_offsets"])
    body = body[: len(body) // 2] if how == "cut" else body + bytes(64) if how == "grow" else body
    write_tensors(path, header, body, size)
    return f"{how} of {name}"


def damage_gguf(rng: random.Random, path: Path) -> str:
    """Numbers of a GGUF file's header that lie: a count, or whatever stands at some place; what was done."""
    data, done = bytearray(path.read_bytes()), []
    header = data.rindex(b".weight") + 64
    for _ in range(rng.choice((1, 1, 2))):
        kind, width = rng.choice((("<Q", 8), ("<Q", 8), ("<I", 4)))
        lie = rng.choice((0, 1, 9, 2**16, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1, rng.randrange(2**20)))
        at = rng.choice((8, 16, rng.randrange(4, header), rng.randrange(4, header)))
        data[at : at + width] = struct.pack(kind, lie % 2 ** (8 * width))
        done.append(f"{lie} at {at}")
    path.write_bytes(bytes(data))
    return ", ".join(done)


def spoil_numbers(rng: random.Random, path: Path) -> str:
    """One number of every tensor, or of one, that is none."""
    header, body = read_tensors(path)
    data, value = bytearray(body), rng.choice((float("nan"), float("inf"), float("-inf")))
    names = [name for name in header if name != "__metadata__" and header[name]["dtype"] == "F32"]
    for name in rng.sample(names, rng.choice((1, len(names)))):
        start, stop = header[name]["data_offsets"]
        at = start + 4 * rng.randrange((stop - start) // 4)
        data[at : at + 4] = struct.pack("<f", value)
    write_tensors(path, header, bytes(data))
    return f"{value} in the weights"


def damage(rng: random.Random, path: Path) -> str:
    """Any damage that fits a file's kind; what was done."""
    fitting: list[Callable[[random.Random, Path], str]] = [damage_bytes, damage_kind]
    if path.suffix == ".json":
        fitting += [damage_json] * 5
    elif path.suffix == ".safetensors":
        fitting += [damage_tensors] * 4
    return f"{path.name}: {rng.choice(fitting)(rng, path)}"
