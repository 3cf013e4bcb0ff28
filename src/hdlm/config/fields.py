"""Fields of configurations: what each one means, said beside it; what it may hold; a list of them all.

A configuration is a frozen dataclass of words, numbers, lists and other configurations. Knows none in particular.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, get_args, get_origin, get_type_hints

from hdlm.theory import numbers

_WORDS = {
    bool: "true or false",
    int: "a whole number below 2^63",
    float: "a finite number",
    str: "text",
    type(None): "none",
    tuple: "a list",
    dict: "none, or numbers by names of their own, as in settings.eps",
}
_NAMES = {
    bool: "true/false",
    int: "int",
    float: "float",
    str: "text",
    type(None): "none",
    tuple: "list",
    dict: "numbers",
}


def setting(
    default: Any = MISSING, about: str = "", *, later: bool = False, read: Callable[[str, str], Any] | None = None
) -> Any:
    """A field and what it means. `later`: added after models were saved, and left out by `plain` at its default.

    `read`: makes the whole field of a word and the field's name, for lists that have a short form.
    """
    metadata = {"about": about, "later": later, "read": read}
    return dataclasses.field(default=default, metadata=metadata)


@functools.cache
def kinds_of(cls: type) -> dict[str, Any]:
    """The types of a configuration's fields by name."""
    return get_type_hints(cls)


def plain(value: Any) -> Any:
    """As JSON has it, in new objects and lists; a field that came later is left out where it is at its default."""
    if dataclasses.is_dataclass(value):
        found = {field: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {
            field.name: plain(inner)
            for field, inner in found.items()
            if not (field.metadata.get("later") and inner == field.default)
        }
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    return {name: plain(inner) for name, inner in value.items()} if isinstance(value, Mapping) else value


def check_fields(value: Any, where: str = "") -> None:
    """Refuse a configuration with a field that holds another kind of thing than it should; `where`: its own name."""
    for name, kind in kinds_of(type(value)).items():
        check_value(f"{where}.{name}" if where else name, kind, getattr(value, name))


def check_value(name: str, kind: Any, value: Any) -> None:
    """Refuse what is not of this kind: numbers that are none, or not finite, or too large, and lists that hold such."""
    inner = get_args(kind)[-1] if get_origin(kind) is dict else get_args(kind)[0] if get_origin(kind) is tuple else None
    if inner is not None and isinstance(value, Mapping if get_origin(kind) is dict else tuple):
        if not (inner is int and all(type(item) is int and abs(item) <= numbers.LARGEST for item in value)):
            for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
                check_value(f"{name}.{key}", inner, item)
    elif not _fits(kind, value):
        raise ValueError(f"{name} = {numbers.shown(value)} is not accepted: it must be {wanted(kind)}")


def _fits(kind: Any, value: Any) -> bool:
    if kind is float:
        return numbers.is_number(value)
    if kind is int:
        return isinstance(value, int) and numbers.is_number(value)
    if get_origin(kind) in (tuple, dict):
        return isinstance(value, get_origin(kind))
    if get_args(kind):
        return any(_fits(one, value) for one in get_args(kind))
    return kind is Any or isinstance(value, kind)


def wanted(kind: Any) -> str:
    """What a field of this kind accepts, in words."""
    return " or ".join(_WORDS.get(one, "an object") for one in _parts(kind))


def _parts(kind: Any) -> list[Any]:
    """The plain types that a field of this kind may have."""
    options = [kind] if get_origin(kind) in (tuple, dict) else get_args(kind) or [kind]
    return [get_origin(one) or one for one in options]


@dataclass(frozen=True)
class Field:
    """One field of a configuration: its dotted name, its type, its value and its meaning, all in words."""

    name: str
    type: str
    value: str
    about: str


def describe(value: Any, where: str = "") -> Iterator[Field]:
    """Every field of a configuration, those of others in it by their dotted names."""
    for field in dataclasses.fields(value):
        name, inner = f"{where}{field.name}", getattr(value, field.name)
        about, kind = field.metadata.get("about", ""), kinds_of(type(value))[field.name]
        if dataclasses.is_dataclass(inner):
            yield from describe(inner, f"{name}.")
        elif field.metadata.get("read") is not None:
            yield Field(name, "words", ",".join(map(str, inner)), about)
            for number, item in enumerate(inner):
                yield from describe(item, f"{name}.{number}.")
        elif isinstance(inner, Mapping) and inner:
            yield from (Field(f"{name}.{key}", _NAMES[float], _word(item), about) for key, item in inner.items())
        else:
            yield Field(name, " or ".join(_NAMES[one] for one in _parts(kind)), _word(inner), about)


def _word(value: Any) -> str:
    """A value as a flag says it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple):
        return " x ".join(str(size) for size in (len(value), *map(len, value[:1])))
    return str(value) if value != {} else "none"
