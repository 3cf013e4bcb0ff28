"""What a request is refused with, and how a body's fields are read: each is named, none is ignored."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from hdlm.errors import first_line
from hdlm.theory import numbers

T = TypeVar("T")
_LONGEST = 500  # characters of a message
# The library's words, where they are not the API's.
_OURS = {"length": "max_tokens", "num_samples": "n", "kind": "hyperschedule", "draft": "speculate", "texts": "text"}


class RefusalError(Exception):
    """An answer that is no result: its HTTP status, what is wrong, and with which field."""

    def __init__(
        self, status: int, message: str, param: str | None = None, *, code: str | None = None, wait: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.wait = status, param, code, wait

    @property
    def headers(self) -> dict[str, str]:
        """When to come again, where that is known, and how to say who one is."""
        found = {} if self.wait is None else {"Retry-After": str(max(1, round(self.wait)))}
        return found | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    def to_json(self) -> dict[str, Any]:
        """The error as OpenAI's clients read it."""
        kind = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}.get(self.status)
        kind = kind or ("invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@contextmanager
def about(*names: str) -> Iterator[None]:
    """Refuse what the block refuses: by the field that its message begins with or names, else by the first of these."""
    try:
        yield
    except ValueError as error:
        raise RefusalError(400, _short(first_line(error)), _field(str(error), names)) from None


def _field(message: str, names: tuple[str, ...]) -> str:
    """Which field a message is about: what it says is not accepted, as in "hyperschedule.rate = 0", or any it names."""
    said = re.match(r"([\w.]+) = ", message)
    words = [*(said[1].split(".")[::-1] if said else []), *re.findall(r"\w+", message)]
    words = [_OURS.get(word, word) for word in words]
    return next((word for word in words if word in names), names[0])


def _short(message: str) -> str:
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST // 2]} ... {message[-_LONGEST // 2 :]}"


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is; a name that stands there twice, and what is no number, are refused."""
    try:
        data = json.loads(body, object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError:
        raise RefusalError(400, "the body is not accepted: it is nested too deeply") from None
    except ValueError as error:
        raise RefusalError(400, _short(f"the body is not JSON: {first_line(error)}")) from None
    if not isinstance(data, dict):
        raise RefusalError(400, f"the body is not accepted: it must be a JSON object, and is {numbers.shown(data)}")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = {}
    for name, value in pairs:
        if name in found:
            raise RefusalError(400, f"{numbers.shown(name)} stands twice in one object", name[:_LONGEST])
        found[name] = value
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


class Fields:
    """The fields of a body. Null is the same as absent."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data, self._known = data, set[str]()

    def get(self, name: str, check: Callable[[str, Any], T]) -> T | None:
        """What a field says, as `check(name, value)` has it, which refuses by a `ValueError`."""
        self._known.add(name)
        if (value := self._data.get(name)) is None:
            return None
        with about(name):
            return check(name, value)

    def needed(self, name: str, check: Callable[[str, Any], T]) -> T:
        """The same of one that must be there."""
        if (found := self.get(name, check)) is None:
            raise RefusalError(400, f"{name} is missing", name)
        return found

    def has(self, name: str) -> bool:
        """Whether a field is there."""
        return self._data.get(name) is not None

    def said(self, name: str) -> Any:
        """A field as it stands there."""
        return self._data.get(name)

    def flag(self, name: str) -> bool:
        """A field that is true, or false, or absent, which is false."""
        return bool(self.get(name, numbers.boolean))

    def idle(self, name: str, *values: Any) -> None:
        """A field of OpenAI's that is taken at the values at which it does nothing."""

        def check(name: str, value: Any) -> None:
            if not any(type(value) is type(idle) and value == idle for idle in values):
                raise ValueError(f"{name} = {numbers.shown(value)} is not accepted: this server does not have it")

        self.get(name, check)

    def end(self) -> None:
        """Refuse all that was not asked for."""
        for name in self._data:
            if name not in self._known:
                shown = numbers.shown(name)
                raise RefusalError(400, f"{shown} is no field here{numbers.near(name, self._known)}", name[:_LONGEST])


def whole(low: int, high: int | None = None) -> Callable[[str, Any], int]:
    """A check for whole numbers in a range."""
    return lambda name, value: numbers.integer(name, value, low=low, high=high)


def listed(name: str, value: Any) -> list[Any]:
    """A check for lists."""
    return numbers.instance(name, value, list)
