"""Turns what pydantic says about a wrong value into one `InputError`: where, what was given, what is allowed."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ValidationError

from harness.errors import InputError

#: The user's words for pydantic's types of mistakes; for all others its own message says what is allowed.
_RULES = {
    "bool_type": "must be true or false",
    "dict_type": "must be a block of keys",
    "float_type": "must be a number",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "model_type": "must be a block of keys",
    "string_type": "must be text",
    "tuple_type": "must be a list",
}


def join_key(*parts: object) -> str:
    """A dotted key path; empty parts are left out."""
    return ".".join(str(part) for part in parts if part != "")


def unknown(what: str, given: object, allowed: Iterable[object]) -> str:
    """The message for a name that is not among the allowed ones, with the nearest of them if there is one."""
    names = [str(name) for name in allowed]
    near = difflib.get_close_matches(str(given), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"unknown {what} {str(given)!r}{hint} Allowed: {', '.join(names) or 'none'}"


@contextmanager
def located(source: str = "", key: str = "") -> Iterator[None]:
    """Complete the place of every `InputError` raised inside: `key` goes before its key path, `source` fills a gap."""
    try:
        yield
    except InputError as error:
        raise InputError(error.message, source=error.source or source, key=join_key(key, error.key)) from error


def input_error(error: ValidationError, annotation: Any, *, source: str = "", key: str = "") -> InputError:
    """The first mistake in `error` as an `InputError`.

    Parameters
    ----------
    error : what pydantic raised.
    annotation : the type that was validated against; it tells the keys of the user from pydantic's own union branches.
    source, key : the file or flag, and the key path in it, of the validated value.
    """
    details: list[Mapping[str, Any]] = [*error.errors(include_url=False)]
    # A misspelt key is also a missing one: say which key was misspelt.
    first = next((d for d in details if d["type"] == "extra_forbidden"), details[0])
    path, owner = _walk(annotation, first["loc"])
    if first["type"] == "extra_forbidden":
        return InputError(unknown("key", path[-1], _keys(owner)), source=source, key=join_key(key, *path))
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, InputError):
        return InputError(inner.message, source=inner.source or source, key=join_key(key, *path, inner.key))
    if first["type"] == "missing":
        return InputError("is required and missing", source=source, key=join_key(key, *path))
    if inner is not None:
        return InputError(str(inner), source=source, key=join_key(key, *path))
    alternatives = [_rule(d) for d in details if _walk(annotation, d["loc"])[0] == path]
    message = f"given {first['input']!r}: {' or '.join(dict.fromkeys(alternatives))}"
    return InputError(message, source=source, key=join_key(key, *path))


def _rule(detail: Mapping[str, Any]) -> str:
    inner = detail.get("ctx", {}).get("error")
    return _RULES.get(detail["type"]) or re.sub("^(Input|String) should", "must", str(inner or detail["msg"]))


def _walk(annotation: Any, loc: Sequence[str | int]) -> tuple[list[str | int], Any]:
    """The part of `loc` that are keys of the user, and the annotation of what holds the last of them."""
    path: list[str | int] = []
    owner = annotation
    for part in loc:
        children = _children(annotation, part)
        if children is None:
            break
        path.append(part)
        owner, annotation = annotation, children
    return path, owner


def _children(annotation: Any, part: str | int) -> Any:
    """The annotation of the value below key `part`; `None` if there are no keys below."""
    model = _strip(annotation)
    if isinstance(model, type) and issubclass(model, BaseModel):
        by_key = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
        return by_key.get(str(part), Any)
    origin, args = typing.get_origin(model), typing.get_args(model)
    if origin in (dict, Mapping) and args:
        return args[1]
    if origin in (list, tuple, Sequence) and args and isinstance(part, int):
        return args[0]
    return None


def _strip(annotation: Any) -> Any:
    """The one type of `annotation` that can hold keys, out of `Annotated`, `Optional` and unions."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _strip(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        members = [_strip(member) for member in typing.get_args(annotation)]
        holders = [m for m in members if typing.get_origin(m) or (isinstance(m, type) and issubclass(m, BaseModel))]
        return holders[0] if holders else None
    return annotation


def _keys(annotation: Any) -> list[str]:
    model = _strip(annotation)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return [field.alias or name for name, field in model.model_fields.items()]
    return []
