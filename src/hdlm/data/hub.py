"""Rows of a data set on the Hugging Face hub, read as they come, a file at a time: nothing has to fit on a disk.

Only sets of plain files are read (Parquet, JSON): no code of theirs runs here. Knows no split of ours and no tokenizer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hdlm.errors import first_line

_FILES = "hf://datasets/"


@dataclass(frozen=True)
class HubSet:
    """Where a set lies on the hub: its name there, the names of its splits, the column that is its text.

    `converted`: the set itself comes with code, and what is read is the hub's own conversion of it to Parquet. `rows`:
    how many a split has, where it has to be known before it is read.
    """

    name: str
    splits: dict[str, str]
    config: str | None = None
    revision: str = "main"
    column: str = "text"
    converted: bool = False
    rows: dict[str, int] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """What is read, as a person would write it."""
        return f"{self.name}@{self.revision}" + (f" ({self.config})" if self.config else "")

    def fingerprint(self, split: str) -> str:
        """What is read of a split, by name: the hub keeps what a revision says."""
        return f"{self.name}@{self.revision}-{self.config}-{self.splits[split]}-{self.column}"

    def _asked(self, split: str) -> dict:
        """What `datasets.load_dataset` is asked for."""
        theirs = self.splits[split]
        if not self.converted:
            return {"path": self.name, "name": self.config, "revision": self.revision, "split": theirs}
        revision = self.revision.replace("/", "%2F")
        files = f"{_FILES}{self.name}@{revision}/{self.config}/{theirs}/*.parquet"
        return {"path": "parquet", "data_files": {theirs: files}, "split": theirs}

    def texts(self, split: str, called: str, *, start: int = 0) -> Iterator[str]:
        """The texts of a split's rows from `start` on; `called` names the set where it cannot be had."""
        try:
            import datasets  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ValueError(f"data = {called!r} comes from the hub and needs: pip install 'hdlm[datasets]'") from None
        try:
            rows = datasets.load_dataset(**self._asked(split), streaming=True)
            rows = rows.select_columns([self.column])
        except Exception as error:
            raise ValueError(f"data = {called!r} could not be had from the hub: {first_line(error)}") from None
        try:
            for row in rows.skip(start) if start else rows:
                yield row[self.column] or ""
        except Exception as error:  # what was read so far is good, and worth to be kept
            raise ConnectionError(f"data = {called!r}: the hub broke off: {first_line(error)}") from None
