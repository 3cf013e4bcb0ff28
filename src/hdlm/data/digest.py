"""What a file holds, in a few letters."""

import hashlib
from pathlib import Path


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, about a second a GiB."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
