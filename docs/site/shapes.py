"""Docstrings as they are meant: `[steps + 1][length]` is a shape, and no reference to something of that name."""

import re
from typing import Any

import griffe


class Shapes(griffe.Extension):
    """Escapes what a Markdown reader would take for a reference, outside of code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Read one docstring anew."""
        if obj.docstring:
            parts = re.split(r"(`[^`]*`)", obj.docstring.value)
            parts[::2] = [re.sub(r"\](\s?)\[", r"]\1\[", part) for part in parts[::2]]
            obj.docstring.value = "".join(parts)
