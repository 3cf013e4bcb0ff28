"""JSON objects and dotted names to configurations: what is unknown or wrong is refused by its name."""

import dataclasses
import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, cast, get_args, get_origin

from hdlm.config.fields import check_value, describe, kinds_of, plain, wanted
from hdlm.theory import numbers

T = TypeVar("T")
NOTHING = ("none", "null")  # words for a field without a value


def parse(cls: type, data: Any, where: str) -> Any:
    """A dataclass from a JSON object, its own fields alone; fields that are dataclasses or lists of them likewise.

    `where`: its name, by which its fields are named when they are refused; nothing for one that is the whole.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} = {numbers.shown(data)} is not accepted: it must be an object")
    kinds = kinds_of(cls)
    for name in data:
        if name not in kinds:
            hint = numbers.near(name, kinds)
            raise ValueError(f"{where} has the unknown field {name!r}: it may have {', '.join(sorted(kinds))}{hint}")
    for field in dataclasses.fields(cls):
        if field.default is field.default_factory is dataclasses.MISSING and field.name not in data:
            raise ValueError(f"{_inside(where, field.name)} is missing")
    values = {name: _value(kinds[name], value, _inside(where, name)) for name, value in data.items()}
    return _named(where, kinds, cls, values)


def _inside(where: str, name: Any) -> str:
    return f"{where}.{name}" if where else str(name)


def _named(where: str, names: Iterable[str], make: Any, values: Mapping[str, Any]) -> Any:
    """What is made of values; what is refused of one of these names is refused of `where`, which has it."""
    try:
        return make(**values)
    except ValueError as error:
        raise ValueError(_inside(where, error) if str(error).split(" ")[0] in names else str(error)) from None


def build(where: str, word: str, make: Any, settings: Mapping[str, Any], **fixed: Any) -> Any:
    """The object that a word stands for, of settings by name and what is `fixed` besides.

    What is wrong with a setting is said of `where`, the configuration that has it.
    """
    parameters = {name: one for name, one in inspect.signature(make).parameters.items() if name not in fixed}
    for name, value in settings.items():
        if name not in parameters:
            takes = f"the kind {word!r} takes {', '.join(parameters) or 'nothing'}{numbers.near(name, parameters)}"
            raise ValueError(f"{where}.{name} = {numbers.shown(value)} is not accepted: {takes}")
    for name, one in parameters.items():
        if one.default is inspect.Parameter.empty and name not in settings:
            raise ValueError(f"{where}.{name} = None is not accepted: the kind {word!r} needs one")
    return _named(where, parameters, make, {**settings, **fixed})


def _value(kind: Any, value: Any, where: str) -> Any:
    """A JSON value as its field's own kind."""
    options = [one for one in (kind, *get_args(kind)) if get_origin(one) is tuple]
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        return parse(kind, value, where)
    if options and isinstance(value, list | tuple):
        inner = get_args(options[0])[0]
        if inner is not int:
            return tuple(_value(inner, item, _inside(where, i)) for i, item in enumerate(value))
        kind, value = options[0], tuple(value)
    check_value(where, kind, value)
    return value


def override(value: T, name: str, word: str) -> T:
    """A dataclass with one field changed, by its dotted name ("optimizer.lr", "schedules.0.width")."""
    return overrides(value, [(name, word)])


def overrides(value: T, changes: Iterable[tuple[str, str]]) -> T:
    """A dataclass with several fields changed, each by its dotted name; what they come to together is what counts."""
    data, cls = plain(value), type(value)
    names = [field.name for field in describe(value)]
    for name, word in changes:
        _Change(name, str(word), names).make(cls, data, name.split("."))
    return parse(cls, data, "")


@dataclass(frozen=True)
class _Change:
    """A word for the field of a dotted name; `names`: all that there are."""

    name: str
    word: str
    names: list[str]

    def make(self, kind: Any, data: Any, path: list[str]) -> None:
        """Set what a path leads to in JSON `data` of a kind: a dataclass, a list of them, or numbers by name."""
        head, rest = path[0], path[1:]
        inner, read = self._inside(kind, data, path)
        key: Any = int(head) if isinstance(data, list) else head
        if rest:
            self.make(inner, data[key] if isinstance(data, list) else data.get(key), rest)
        elif dataclasses.is_dataclass(inner):
            self._refuse(f"it is a group of fields, {', '.join(kinds_of(cast(type, inner)))}")
        else:
            data[key] = plain(read(self.word, self.name)) if read is not None else self._converted(inner)

    def _inside(self, kind: Any, data: Any, path: list[str]) -> tuple[Any, Any]:
        """The kind of the field that a path begins with, and what reads a word for it, if something does."""
        if get_origin(kind) is dict:
            return get_args(kind)[1], None
        if isinstance(data, list):
            if path[0] not in map(str, range(len(data))):
                self._refuse(f"{path[0]!r} must be in 0..{len(data) - 1}")
            return get_args(kind)[0], None
        fields = {field.name: field for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}
        if path[0] not in fields:
            there = f"the fields there are {', '.join(sorted(fields))}" if fields else "there are no fields"
            self._refuse(f"{there}{self._near(path, fields)}")
        return kinds_of(kind)[path[0]], fields[path[0]].metadata.get("read")

    def _near(self, path: list[str], known: Iterable[str]) -> str:
        """The name that was meant, if one looks like it: one of that place, or the same one of another."""
        before = self.name.split(".")[: -len(path)]
        close = difflib.get_close_matches(path[0], list(known), n=1)
        found = [".".join([*before, *close])] if close else [x for x in self.names if x.split(".")[-1] == path[-1]]
        return f"; did you mean {found[0]}?" if found else ""

    def _converted(self, kind: Any) -> Any:
        """The word as the field's own kind."""
        word, kinds = self.word, get_args(kind) or (kind,)
        if word.lower() in NOTHING and (type(None) in kinds or get_origin(kind) is dict):
            return {} if get_origin(kind) is dict else None
        for one in kinds if get_origin(kind) is None or type(None) in kinds else ():
            if one is bool and word.lower() in ("true", "false"):
                return word.lower() == "true"
            if one is str:
                return word
            if one in (int, float):
                try:
                    number = one(word)
                    check_value(self.name, one, number)
                except ValueError:
                    continue
                return number
        return self._refuse(f"it must be {wanted(kind)}")

    def _refuse(self, why: str) -> NoReturn:
        raise ValueError(f"{self.name} = {numbers.shown(self.word)} is not accepted: {why}")
