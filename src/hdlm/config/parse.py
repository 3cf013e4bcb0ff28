"""JSON objects and dotted names to nested dataclasses: unknown fields are refused by name."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def parse(cls: type, data: Any, where: str) -> Any:
    """A dataclass from a JSON object, its own fields alone; fields that are dataclasses or lists of them likewise."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} = {data!r} is not accepted: it must be an object")
    kinds = get_type_hints(cls)
    for name in data:
        if name not in kinds:
            raise ValueError(f"{where} has the unknown field {name!r}: it may have {', '.join(sorted(kinds))}")
    return build(where, cls, {name: _value(kinds[name], value, f"{where}.{name}") for name, value in data.items()})


def build(where: str, make: Any, values: Mapping[str, Any]) -> Any:
    """Build an object; a missing or superfluous setting is bad input, not a bug."""
    try:
        return make(**values)
    except TypeError as error:
        raise ValueError(f"{where} is not accepted: {str(error).split('.', 1)[-1]}") from None


def _value(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        return parse(kind, value, where)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where} = {value!r} is not accepted: it must be a list")
        return tuple(_value(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    return value


def override(value: T, name: str, word: str) -> T:
    """A dataclass with one field changed, by its dotted name ("optimizer.lr", "schedules.0.width")."""
    return _override(value, name.split("."), str(word), name)


def _override(value: Any, path: list[str], word: str, name: str) -> Any:
    if not path:
        raise ValueError(f"{name} is not accepted: it is a group of fields")
    head, rest = path[0], path[1:]
    if isinstance(value, tuple):
        if not head.isdigit() or int(head) >= len(value):
            raise ValueError(f"{name} is not accepted: {head!r} must be in 0..{len(value) - 1}")
        items = list(value)
        items[int(head)] = _override(items[int(head)], rest, word, name)
        return tuple(items)
    hints = get_type_hints(type(value))
    if not dataclasses.is_dataclass(value) or head not in hints:
        raise ValueError(f"{name} is not accepted: the fields there are {', '.join(sorted(hints))}")
    old = getattr(value, head)
    nested = rest or dataclasses.is_dataclass(old) or isinstance(old, tuple)
    new = _override(old, rest, word, name) if nested else _convert(hints[head], word, name)
    return dataclasses.replace(value, **{head: new})  # pyright: ignore[reportArgumentType]


def _convert(kind: Any, word: str, name: str) -> Any:
    """A word as the field's own kind."""
    kinds = get_args(kind) or (kind,)
    if type(None) in kinds and word.lower() == "none":
        return None
    for candidate in kinds:
        if candidate is bool and word.lower() in ("true", "false"):
            return word.lower() == "true"
        if candidate in (int, float):
            try:
                return candidate(word.replace("_", ""))
            except ValueError:
                continue
        if candidate is str:
            return word
    wanted = " or ".join(getattr(k, "__name__", str(k)) for k in kinds)
    raise ValueError(f"{name} = {word!r} is not accepted: it must be {wanted}")
