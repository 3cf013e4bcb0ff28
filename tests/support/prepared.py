"""Small text and what is prepared of it, in shards so short that there are several."""

import json
from pathlib import Path

from hdlm.data import shard
from hdlm.data.prepare import prepare


def write_text(path: Path, documents: int = 60) -> str:
    """A file of JSON lines; its name."""
    lines = [f"document {number} says: " + "some words again, " * (number % 7) for number in range(documents)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in lines))
    return str(path)


def short_shards(monkeypatch, characters: int = 400) -> None:
    """Shards of so many characters, encoded a few at a time."""
    monkeypatch.setattr(shard, "SHARD", characters)
    monkeypatch.setattr(shard, "_BATCH", characters // 3)


def make(folder: Path, monkeypatch, *, name: str = "tokens", tokenizer: str = "bytes", workers: int = 1, **how):
    """Prepared data of short shards in a folder, of a text beside it."""
    short_shards(monkeypatch)
    data = folder / "text.jsonl"
    if not data.exists():
        write_text(data)
    return prepare(str(data), folder / name, tokenizer=tokenizer, workers=workers, **how)
